# Set-up that tools/test and tools/demo share; sourced from the root of the tree.
#
# .venv is brought up to date when pyproject.toml has changed, and only then: a second run starts at once.

readonly STAMP=.venv/pyproject.sha256

fail() {
    printf '%s\n' "$1" >&2
    exit 2
}

# Run a step and say how long it took; a step that fails ends the run.
step() {
    local name=$1 start=$SECONDS code=0
    shift
    printf '\n== %s\n' "$name"
    "$@" || code=$?
    printf -- '-- %s: %s, %d s\n' "$name" "$( ((code)) && echo failed || echo ok)" $((SECONDS - start))
    ((code == 0)) || exit "$code"
}

create_environment() {
    local python=${PYTHON:-python3}
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "bruce needs Python 3.11 or newer as '$python'; set PYTHON to name another."
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "'$python' cannot make virtual environments; install its venv package (Debian: apt-get install python3-venv)."
    "$python" -m venv .venv
}

# The calls are chained: `step` asks for the outcome, and then bash does not stop at a failure by itself.
set_up() {
    [ -x .venv/bin/pip ] || create_environment || return
    sha256sum --status --check "$STAMP" 2>/dev/null ||
        { .venv/bin/pip install --quiet --editable '.[spark,test,fuzz,plot]' && sha256sum pyproject.toml >"$STAMP"; }
}
