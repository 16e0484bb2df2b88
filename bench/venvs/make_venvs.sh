#!/bin/sh
# Make every actor's venv, one after the other: make_venvs.sh <manifest> <venv directory>
# UV_LINK_MODE and UV_CACHE_DIR say how uv puts files into a venv. What one venv fetched, the next ones take from the cache.
set -eu
if [ -f /run/secrets/ca ]; then export SSL_CERT_FILE=/run/secrets/ca; fi
if [ -f /run/secrets/netrc ]; then export NETRC=/run/secrets/netrc; fi
if [ -f /run/secrets/index ]; then UV_DEFAULT_INDEX=$(cat /run/secrets/index); export UV_DEFAULT_INDEX; fi
export UV_PYTHON_DOWNLOADS=never UV_NO_PROGRESS=1
mkdir -p "$2"
python3 "$1" all > /tmp/rows
tab=$(printf '\t')
while IFS="$tab" read -r actor _ extras; do
    # Unquoted: the row's third column is a list of options.
    UV_PROJECT_ENVIRONMENT="$2/$actor" /tools/bin/uv sync --quiet --frozen --no-install-project --python /usr/bin/python3 \
        --project "$(dirname "$1")" $extras < /dev/null
done < /tmp/rows
rm /tmp/rows
