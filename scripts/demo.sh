#!/usr/bin/env bash
# Makes a virtual environment, installs tracejit and runs the demo; arguments go to scripts/demo.py.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

prepare_venv demo
export KINETO_LOG_LEVEL=6        # of the profiler that measures memory: no notes
exec "$venv_python" "$root/scripts/demo.py" "$@"
