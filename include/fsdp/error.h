#pragma once
// The errors of libfsdp. Each is one line of text:
//   [rank r] what happened, where (unit, parameter, collective), got, expected,
//   what to do
// The rank is left out where it says nothing: mistakes in a call's arguments,
// and settings, which are wrong on every rank alike.
// docs/errors.md lists every text with what the caller may do next. The library
// never prints, exits or aborts; these exceptions are its only way to complain.

#include <stdexcept>
#include <string>

#include "fsdp/export.h"

namespace fsdp {

/// Base of every error thrown by libfsdp.
class FSDP_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller used the API in a way that can never work: a wrong shape, a
/// module without hooks, an option out of range. Nothing was changed; correct
/// the program.
class FSDP_API UsageError : public Error {
 public:
  using Error::Error;
};

/// A setting that came from outside the program (flag, file, environment
/// variable) is missing, unknown or out of range. Correct the setting.
class FSDP_API ConfigError : public Error {
 public:
  using Error::Error;
};

/// A file or folder cannot be read or does not hold what it should.
class FSDP_API DataError : public Error {
 public:
  using Error::Error;
};

/// Base of the errors in talking to other ranks.
class FSDP_API CommError : public Error {
 public:
  using Error::Error;
};

/// Ranks met with different requests (another unit, collective, dtype, size or
/// grad mode). Thrown on every rank of the group, with both requests. No data
/// moved. The group may be used again once every rank has seen the error.
class FSDP_API MismatchError : public CommError {
 public:
  using CommError::CommError;
};

/// Another rank failed; the text holds its rank, unit and message. Thrown once
/// on every other rank. The group may be used again afterwards.
class FSDP_API PeerError : public CommError {
 public:
  using CommError::CommError;
};

/// Another rank's process ended. The group cannot be used again.
class FSDP_API PeerDiedError : public CommError {
 public:
  using CommError::CommError;
};

/// A wait passed its deadline; the text says what for and which ranks had not
/// come. The group cannot be used again.
class FSDP_API TimeoutError : public CommError {
 public:
  using CommError::CommError;
};

} // namespace fsdp
