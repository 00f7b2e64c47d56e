#!/usr/bin/env python3
"""Writes the weights and tokens that both sides of a comparison start from.

usage: export.py FILE --size seed --ranks 2 [--vocab N]
"""

import argparse

import model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--size", choices=model.SIZES, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--vocab", type=int, default=0)
    options = parser.parse_args()
    model.export(options.file, model.size_of(options.size, options.vocab), options.ranks)


if __name__ == "__main__":
    main()
