#!/usr/bin/env python3
"""Writes the weights and tokens that both sides of a comparison start from.

usage: export.py FILE --size seed --ranks 2 [--vocab N] [--batch N]
"""

import argparse

import model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--size", choices=model.SIZES, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--vocab", type=int, default=0)
    parser.add_argument("--batch", type=int, default=0)
    options = parser.parse_args()
    size = model.size_of(options.size, options.vocab, options.batch)
    model.export(options.file, size, options.ranks)


if __name__ == "__main__":
    main()
