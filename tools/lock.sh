#!/bin/sh
# Writes the two requirement locks anew: versions and hashes, no host names, so any package index serves them.
# Needs uv on the PATH. uv.lock itself names the index it was made with and is therefore not kept.
set -eu
cd "$(dirname "$0")/.."
uv lock --quiet "$@"
export_lock() { out=$1; shift; uv export --quiet --frozen --format requirements.txt --no-emit-project --no-header --no-annotate "$@" >"$out"; }
export_lock requirements.lock --no-dev --group build
export_lock requirements-dev.lock --all-groups --all-extras
