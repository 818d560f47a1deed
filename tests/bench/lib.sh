# Functions for gpu.sh and gpus.sh, which source this file after tests/lib.sh. $log is the log of the last run.
log=$work/log

# watched SECONDS COMMAND...: runs the command, with its output in $work/out. If the command fails or takes longer than
# SECONDS, prints the end of its output and returns its status.
watched() {
    local limit=$1 status=0
    shift
    timeout -k 5 "$limit" "$@" > "$work/out" 2> "$work/err" < /dev/null || status=$?
    if [ $status != 0 ]; then
        echo "status $status$([ $status != 124 ] || echo ", after $limit s"): $*" >&2
        tail -n 30 "$work/out" "$work/err" >&2
    fi
    return $status
}

# median: the median of the numbers on stdin, one per step, without the first five.
median() {
    tail -n +6 | sort -g | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'
}

# field NAME: the median of this number over the log's steps.
field() {
    sed -n "/\"step\"/s/.*\"$1\":\([0-9.e+-]*\).*/\1/p" "$log" | median
}

# mfu: the median of the MFU in the step lines of $work/out; nothing if the device's peak is unknown.
mfu() {
    sed -n 's/^step .* mfu \([0-9.]*\)%.*/\1/p' "$work/out" | median
}

# token_file VOCABULARY FILE: writes random tokens in llm.c's format. They are Zipf distributed, as words in text are.
token_file() {
    python3 - "$@" << 'END_OF_PYTHON'
import array, itertools, random, sys

COUNT = 2000000
vocab, path = int(sys.argv[1]), sys.argv[2]
magic, version, code = (20240520, 1, "H") if vocab <= 65536 else (20240801, 7, "I")
random.seed(vocab)
ids = random.sample(range(vocab), vocab)
zipf = list(itertools.accumulate(1 / (rank + 2.7) for rank in range(vocab)))
with open(path, "wb") as f:
    array.array("i", [magic, version, COUNT] + 253 * [0]).tofile(f)
    array.array(code, random.choices(ids, cum_weights=zipf, k=COUNT)).tofile(f)
END_OF_PYTHON
}

# torch_version: PyTorch's version; nothing if it is not installed or sees no GPU.
torch_version() {
    python3 -c 'import torch; print(torch.__version__ if torch.cuda.is_available() else "")' 2> /dev/null || true
}
