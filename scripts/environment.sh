# shellcheck shell=bash
# Sourced by the scripts beside it: goes to the repository's root, puts the virtual environment $VENV first in PATH
# (.venv unless set; a relative path counts from the root), and keeps the libraries offline and quiet.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

VENV=${VENV:-.venv}
[[ $VENV == /* ]] || VENV=$PWD/$VENV
export VENV PATH="$VENV/bin:$PATH"

export HF_HUB_OFFLINE=1
export VLLM_CPU_KVCACHE_SPACE=1 # GiB
export VLLM_NO_USAGE_STATS=1
export DO_NOT_TRACK=1
export TOKENIZERS_PARALLELISM=false

# scripts/setup leaves byte-compiling to the first run, so that run must be allowed to keep what it compiled.
unset PYTHONDONTWRITEBYTECODE
