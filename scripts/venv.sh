# Sourced by test.sh and demo.sh.
#
#   prepare_venv EXTRA   makes (or re-uses) the virtual environment, with `tracejit[EXTRA]` installed in
#                        editable form, and sets $venv_python; $root is the repository.
#
# TRACEJIT_VENV   where the environment lives; default: .venv in the repository
# PYTHON          the interpreter to make it with; default: the first python3 that is new enough
#
# A stamp inside the environment remembers what was installed: a second run needs no package index.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

die() {
    printf '%s\n' "$@" >&2
    exit 1
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    die "tracejit needs Python 3.10 or newer, and ${PYTHON:-python3} is not." \
        "Install one, or name one that is there: PYTHON=/path/to/python3"
}

make_venv() {
    local python=$1 venv=$2 log
    echo "making $venv with $("$python" --version)" >&2
    log=$("$python" -m venv --clear "$venv" 2>&1) || die "$log" "" \
        "Cannot make a virtual environment: 'python3 -m venv' needs the venv and ensurepip modules." \
        "On Debian or Ubuntu: apt-get install python3-venv; elsewhere: the package that holds them."
}

# What was asked for, as text: when it differs from the stamp, pip runs again.
requirements() {
    local extra=$1
    echo "tracejit[$extra] from $root"
    cat "$root/setup.cfg" "$root/pyproject.toml" "$root/scripts/constraints.txt"
}

prepare_venv() {
    local extra=$1 venv=${TRACEJIT_VENV:-$root/.venv} python stamp
    stamp=$venv/tracejit-$extra.stamp
    venv_python=$venv/bin/python
    if [ -f "$stamp" ] && "$venv_python" -c '' 2>/dev/null && requirements "$extra" | cmp -s - "$stamp"; then
        return
    fi
    if ! "$venv_python" -m pip --version >/dev/null 2>&1; then
        [ ! -e "$venv" ] || [ -f "$venv/pyvenv.cfg" ] || die "$venv exists and is not a virtual environment"
        python=$(find_python) || exit 1
        make_venv "$python" "$venv"
    fi
    echo "installing tracejit[$extra] into $venv" >&2
    "$venv_python" -m pip install --quiet --disable-pip-version-check \
        --constraint "$root/scripts/constraints.txt" --editable "$root[$extra]" ||
        die "pip could not install tracejit[$extra] into $venv"
    requirements "$extra" >"$stamp"
}
