# What gpu.sh and gpus.sh share. Sourced, after tests/lib.sh; leaves the log of a run in $log.
log=$work/log

# watched SECONDS COMMAND...: leaves its output in $work/out. If it fails or takes too long, says so and returns that.
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

# The median of the numbers on stdin, one per step, without the first five.
median() {
    tail -n +6 | sort -g | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'
}

# field NAME: the median of a number in the log.
field() {
    sed -n "/\"step\"/s/.*\"$1\":\([0-9.e+-]*\).*/\1/p" "$log" | median
}

# mfu: the median of the step lines' in $work/out; nothing if the device's peak is not known.
mfu() {
    sed -n 's/^step .* mfu \([0-9.]*\)%.*/\1/p' "$work/out" | median
}

# token_file VOCABULARY FILE: tokens as llm.c has them: frequent words and rare ones, as in text, in no order.
token_file() {
    python3 - "$@" << 'END_OF_PYTHON'
import array, itertools, random, sys

COUNT = 2000000
vocab, path = int(sys.argv[1]), sys.argv[2]
magic, code = (20240520, "H") if vocab <= 65536 else (20240801, "I")
random.seed(vocab)
ids = random.sample(range(vocab), vocab)
zipf = list(itertools.accumulate(1 / (rank + 2.7) for rank in range(vocab)))
with open(path, "wb") as f:
    array.array("i", [magic, 1, COUNT] + 253 * [0]).tofile(f)
    array.array(code, random.choices(ids, cum_weights=zipf, k=COUNT)).tofile(f)
END_OF_PYTHON
}

# What torch is called with; nothing where it is not, or sees no GPU.
torch_version() {
    python3 -c 'import torch; print(torch.__version__ if torch.cuda.is_available() else "")' 2> /dev/null || true
}
