# tensorcx - `make help` tells what there is.
# One description of the C build: pip install calls it too (setup.py).

VERSION := 0.1.0
PREFIX  ?= /usr/local
BUILD   ?= build
CC      ?= cc
PYTHON  ?= python3
VENV    ?= .venv

.DEFAULT_GOAL := all
