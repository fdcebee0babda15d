#!/bin/sh
# Writes gpu_manager/pb from proto/: run by `make proto`, from any directory. The same tools give the same bytes.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
sources=$(cd proto && find . -name '*.proto' | LC_ALL=C sort | sed 's|^\./|gpu_manager/pb/|')

rm -rf gpu_manager/pb
mkdir -p gpu_manager/pb
# The virtual path gpu_manager/pb=proto makes the modules import each other by the names they have in the package.
# shellcheck disable=SC2086  # file names without spaces, one argument each
"$python" -m grpc_tools.protoc -Igpu_manager/pb=proto --python_out=. --pyi_out=. --grpc_python_out=. $sources
find gpu_manager/pb -type d -exec touch {}/__init__.py \;
