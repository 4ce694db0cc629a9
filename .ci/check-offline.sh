#!/bin/sh
# What nox -s offline packs beside wheels and tests: checks a machine that has PyTorch and no network.
# Arguments go to the self-check; selfcheck.json and gpu-tests.txt are written into the current folder.
here=$(cd "$(dirname "$0")" && pwd)
python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$here/site" "$here"/wheels/*.whl || exit
export PYTHONPATH="$here/site" PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTHONDONTWRITEBYTECODE=1
python3 -m checkmate_torch.selfcheck --output selfcheck.json "$@"
checked=$?
log=$PWD/gpu-tests.txt
cd "$here/source" || exit
python3 -m pytest -p pytest_timeout --timeout=300 -p no:cacheprovider -m gpu $(grep -rl --include='*.py' mark.gpu tests/torch tests/trainers) >"$log" 2>&1
tested=$?
tail -n 15 "$log"
[ $checked = 0 ] && [ $tested = 0 ]
