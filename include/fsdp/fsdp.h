#pragma once
// All of libfsdp's public interface. Names are FSDP2's wherever FSDP2 has the
// thing; start with fully_shard.h.

#include "fsdp/clip_grad.h"
#include "fsdp/device_mesh.h"
#include "fsdp/error.h"
#include "fsdp/export.h"
#include "fsdp/for_each_tensor.h"
#include "fsdp/fully_shard.h"
#include "fsdp/hooked.h"
#include "fsdp/memory.h"
#include "fsdp/meta_init.h"
#include "fsdp/mixed_precision.h"
#include "fsdp/optim.h"
#include "fsdp/optim_state.h"
#include "fsdp/process_group.h"
#include "fsdp/reduce_op.h"
#include "fsdp/unit_phases.h"
