#!/usr/bin/env bash
# Compares random programs, compiled and in eager, in a virtual environment of its own.
#
#   bash scripts/fuzz.sh                              10,000 small programs
#   bash scripts/fuzz.sh --n 1000 --large --threads 2    shapes beyond the caches
#   bash scripts/fuzz.sh --grad                       with gradients
#   bash scripts/fuzz.sh --only 1234                  one program, made smaller if it fails
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

prepare_venv test

export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
cd "$root"
exec "$venv_python" -m tests.fuzz.run --n 10000 --jobs 2 "$@"
