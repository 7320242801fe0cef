#!/usr/bin/env bash
# Runs every test in a virtual environment of its own (scripts/venv.sh says where and with which Python).
#
#   bash scripts/test.sh                    the ordinary run
#   bash scripts/test.sh --all              the full sets: every OpInfo sample, long fuzzing
#   bash scripts/test.sh tests/passes -x    further arguments go to pytest; -n 0 runs without worker processes
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

arguments=()
for argument in "$@"; do
    case $argument in
        --all) export TRACEJIT_TEST_ALL=1 ;;
        *) arguments+=("$argument") ;;
    esac
done

prepare_venv test

# Two workers on a small machine: more threads per worker would only make them wait for each other.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
cd "$root"
exec "$venv_python" -m pytest -n 2 --dist worksteal ${arguments[@]+"${arguments[@]}"}
