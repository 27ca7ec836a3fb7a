#!/bin/sh
# Create the virtual environment and install the package with its tested versions: sh setup.sh VENV [PYTHON] [dev]
#
# `dev` adds the tools that check and test. A later run installs again only if pyproject.toml or constraints.txt has
# changed. It makes a new environment if an earlier run was interrupted, or if the folder was moved or copied, because
# the scripts of a virtual environment contain its path. Without PYTHON the first suitable Python is used.
set -eu

venv=$1 named=${2:-} group=${3:-} stamp=$1/.installed here=$(pwd -P) quiet=
extras=dynamo${group:+,$group}

fail() {
    echo "error: $*" >&2
    exit 2
}

# Compiles the loops of drafting and of the CPU engine, unless they are compiled for this state of their sources and
# this processor. Ends the script when background processes have ended.
compile() {
    "$venv/bin/python" -m pipeline.engine.compilation || fail "The loops could not be compiled; see above."
    wait
    exit 0
}

install() {
    "$venv/bin/python" -m pip install --disable-pip-version-check --constraint constraints.txt "$@" ||
        fail "The packages could not be installed; pip says why above." \
        "Check the network, pip's index settings and the free disk space, and run it again."
}

# Prints "<what this Python is suitable for> <version>". Triton's Python stub needs numpy < 2, which has wheels for
# 3.10 - 3.12, and the interpreter as a library.
probe='
import os, sys
version = "%d.%d" % sys.version_info[:2]
if not (3, 10) <= sys.version_info[:2] <= (3, 12):
    sys.exit(print("wrong " + version))
try:
    import ensurepip, venv
except ImportError:
    sys.exit(print("venvless " + version))
from sysconfig import get_config_var as value
folders = [value("LIBDIR"), sys.base_prefix + "/lib", value("LIBPL")]
folders += [root + str(value("MULTIARCH")) for root in ("/usr/lib/", "/lib/")]
library = "libpython" + version + ".so.1.0"
serves = any(folder and os.path.isfile(os.path.join(folder, library)) for folder in folders)
print(("serves " if serves else "builds ") + version)
'

find_python() {
    builds='' venvless='' found=''
    if [ -n "$named" ]; then set -- "$named"; else set -- python3 python3.12 python3.11 python3.10 python; fi
    for candidate; do
        # A name on PATH may be a shim for a version that is not there.
        answer=$("$candidate" -c "$probe" 2>/dev/null) || continue
        version=${answer#* }
        case $answer in
            serves\ *) python=$candidate && return ;;
            builds\ *) builds=${builds:-$candidate} ;;
            venvless\ *) venvless=${venvless:-$candidate} ;;
        esac
        found="$found${found:+, }$candidate is $version"
    done
    # It can do everything but run the server, which says so itself.
    python=$builds
    [ -z "$python" ] || return 0
    [ -z "$venvless" ] || fail "$venvless cannot make virtual environments: it lacks ensurepip. Install it (Debian and" \
        "Ubuntu: apt install $("$venvless" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'))," \
        "or name another Python 3.10, 3.11 or 3.12 with PYTHON=."
    # A shim prints why the version that it stands for does not run.
    [ -n "$found" ] || ! command -v "$named" >/dev/null || "$named" --version >&2 || true
    fail "Python 3.10, 3.11 or 3.12 is needed; ${found:-${named:-python3} does not run}. Install one, or name it with" \
        "PYTHON=/path/to/python3.12."
}

if [ "$(cat "$stamp" 2>/dev/null)" = "$here" ]; then
    if [ -z "$group" ] || [ -f "$stamp-$group" ]; then
        [ pyproject.toml -nt "$stamp" ] || [ constraints.txt -nt "$stamp" ] || compile
    fi
    rm "$stamp"
    quiet=--quiet  # pip would list each package that is installed already
    echo "Updating the packages in $venv." >&2
else
    find_python
    [ "$python" = "${named:-python3}" ] || echo "Using $python; ${found:-there is no python3}." >&2
    "$python" -m venv --clear "$venv" || fail "$python could not make the virtual environment $venv."
    install --quiet --upgrade pip  # that of Python 3.11 takes twice as long to find the packages
fi
install ${quiet:---progress-bar on} --no-compile --editable ".[$extras]" --editable ./research
rm -f "$stamp-dev"
[ -z "$group" ] || : >"$stamp-$group"
echo "$here" >"$stamp"
# Python's bytecode, which pip would write before the loops can be compiled. It skips files for other versions of Python.
"$venv/bin/python" -m compileall -qq "$venv/lib" || true &
compile
