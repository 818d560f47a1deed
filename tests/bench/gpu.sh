#!/bin/bash
# The GPU's half of make bench, on one GPU in bf16: tokens/s, MFU and memory at three shapes, beside PyTorch at the same
# shapes where it is installed, and a step's time beside that of its matrix products alone. Medians over the steps after
# the first five. Memory is what the GPU reports while a process runs, less what it reported before.
set -eu
cd "$(dirname "$0")/../.."
. tests/lib.sh
build=build/bf16
log=$work/log
gpu=${CUDA_VISIBLE_DEVICES:-0}
gpu=${gpu%%,*}
export CUDA_VISIBLE_DEVICES=$gpu CUDA_DEVICE_ORDER=PCI_BUS_ID # the order of nvidia-smi

used() {
    nvidia-smi -i "$gpu" --query-gpu=memory.used --format=csv,noheader,nounits
}

# watched SECONDS COMMAND...: leaves its output in $work/out and the MiB it took at most in $peak. If it fails or takes
# too long, says so and ends the script.
watched() {
    local limit=$1 status=0
    shift
    touch "$work/running"
    while [ -e "$work/running" ]; do
        used || true
        sleep 0.2
    done > "$work/memory" &
    timeout -k 5 "$limit" "$@" > "$work/out" 2> "$work/err" < /dev/null || status=$?
    rm "$work/running"
    wait
    if [ $status != 0 ]; then
        echo "status $status$([ $status != 124 ] || echo ", after $limit s"): $*" >&2
        tail -n 30 "$work/out" "$work/err" >&2
        exit 1
    fi
    peak=$(awk -v idle="$idle" '$1 > most {most = $1} END {print most - idle}' "$work/memory")
}

# The median of the numbers on stdin, one per step.
median() {
    tail -n +6 | sort -g | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'
}

# field NAME: the median of a number in the log.
field() {
    sed -n "/\"step\"/s/.*\"$1\":\([0-9.e+-]*\).*/\1/p" "$log" | median
}

# measure MODEL SEQUENCES STEPS: adds a row to $work/rows.
measure() {
    local model=$1 sequences=$2 steps=$3 tokens step mfu held ours theirs=- their_peak=-
    watched 60 $build/tiny-ddp --model "$model" --batch "$sequences" --data "$work/$model.bin" --steps "$steps" --log "$log"
    tokens=$(field tokens_per_second)
    step=$(field seconds)
    held=$(field memory_bytes)
    mfu=$(sed -n 's/^step .* mfu \([0-9.]*\)%.*/\1/p' "$work/out" | median) # empty if the device's peak is not known
    ours=$peak
    tail -n 1 "$work/out"
    if [ "$torch" ]; then
        watched 150 python3 tests/bench/torch_baseline.py --model "$model" --batch "$sequences"
        cat "$work/out"
        theirs=$(awk '$1 == "result" {print $6}' "$work/out")
        their_peak=$peak
    fi
    echo "$model:$sequences $tokens $step ${mfu:--} $held $ours $theirs $their_peak" >> "$work/rows"
}

echo "$(nvidia-smi -i "$gpu" --query-gpu=name,driver_version --format=csv,noheader | sed 's/,/, driver/'), $(date +%F)"
command -v python3 > /dev/null || { echo "no python3 to draw tokens with: the GPU's half is skipped"; exit 0; }
torch=$(python3 -c 'import torch; print(torch.__version__ if torch.cuda.is_available() else "")' 2> /dev/null) || torch=
if [ "$torch" ]; then echo "PyTorch $torch"; else echo "no PyTorch here: no baseline"; fi
idle=$(used)

# Token files as llm.c has them: frequent words and rare ones, as in text, in no order.
python3 - "$work" << 'END_OF_PYTHON'
import array, itertools, random, sys

COUNT = 2000000
for model, vocab, magic, code in ("124m", 50304, 20240520, "H"), ("1b", 128256, 20240801, "I"):
    random.seed(vocab)
    ids = random.sample(range(vocab), vocab)
    zipf = list(itertools.accumulate(1 / (rank + 2.7) for rank in range(vocab)))
    with open(f"{sys.argv[1]}/{model}.bin", "wb") as f:
        array.array("i", [magic, 1, COUNT] + 253 * [0]).tofile(f)
        array.array(code, random.choices(ids, cum_weights=zipf, k=COUNT)).tofile(f)
END_OF_PYTHON

measure 124m 64 30
measure 124m 4 30
measure 1b 4 20

watched 60 $build/device_rate 124m:64 124m:4 1b:4
cp "$work/out" "$work/rates"
if ! grep -q '^gemm ' "$work/rates"; then
    echo "$build/device_rate: $(cat "$work/rates")" >&2
    exit 1
fi
grep -E '^(read|write) ' "$work/rates"

echo
awk '
    NR == FNR {if ($1 == "gemm") products[$2] = $3; next}
    FNR == 1 {
        print "one GPU, bf16                     memory, MiB          PyTorch            ratio          step    its products"
        print "shape      tokens/s   MFU %    of step  of process    tokens/s     MiB  (bar: 0.80)       ms    alone, ms"
    }
    {
        ratio = $7 == "-" ? "-" : sprintf("%.2f", $2 / $7)
        printf "%-9s %9.0f %7s %10.0f %11s %11s %7s %12s %8.1f %12.1f\n", $1, $2, $4, $5 / 1048576, $6, $7, $8, ratio, 1e3 * $3, 1e3 * products[$1]
    }' "$work/rates" "$work/rows"
