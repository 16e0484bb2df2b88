#!/bin/sh
# Install uv and the build scripts' libraries, pinned by hash, and make the venv that every venv of the image begins as:
# install_tools.sh <directory> <requirements> [<empty venv>]
set -eu
if [ -f /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi
if [ -f /run/secrets/netrc ]; then export NETRC=/run/secrets/netrc; fi
if [ -f /run/secrets/index ]; then PIP_INDEX_URL=$(cat /run/secrets/index); export PIP_INDEX_URL; fi
if ! python3 -m venv "$1"; then
    echo "greenroom: the base image needs python3 with venv and pip (Debian: python3-venv)" >&2
    exit 1
fi
"$1/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps --require-hashes --only-binary :all: -r "$2"
if [ $# -gt 2 ]; then
    UV_NO_CONFIG=1 UV_PYTHON_DOWNLOADS=never "$1/bin/uv" venv --quiet --no-cache --relocatable --no-project \
        --prompt ray-venv --python "$(command -v python3)" "$3"
    # Its housekeeping; .lock alone would differ between two builds.
    rm -f "$3/.lock" "$3/.gitignore" "$3/CACHEDIR.TAG"
fi
