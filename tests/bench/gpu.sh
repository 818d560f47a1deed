#!/bin/bash
# make bench on one GPU, in bf16: prints tokens/s, MFU and memory at three shapes, beside PyTorch at the same shapes if
# it is installed. Also prints a step's time beside the time of its matrix products alone. Numbers of a step are medians
# over all steps but the first five. A process's memory is the most that the GPU reports as used while the process runs,
# minus what it reported before.
set -eu
cd "$(dirname "$0")/../.."
. tests/lib.sh
. tests/bench/lib.sh
build=build/bf16
gpu=${CUDA_VISIBLE_DEVICES:-0}
gpu=${gpu%%,*}
export CUDA_VISIBLE_DEVICES=$gpu CUDA_DEVICE_ORDER=PCI_BUS_ID # numbers GPUs as nvidia-smi does

used() {
    nvidia-smi -i "$gpu" --query-gpu=memory.used --format=csv,noheader,nounits
}

# measured SECONDS COMMAND...: as watched; also sets $peak to the MiB that the command used at most. Ends the script if
# the command fails.
measured() {
    local status=0
    touch "$work/running"
    while [ -e "$work/running" ]; do
        used || true
        sleep 0.2
    done > "$work/memory" &
    watched "$@" || status=$?
    rm "$work/running"
    wait
    [ $status = 0 ] || exit 1
    peak=$(awk -v idle="$idle" '$1 > most {most = $1} END {print most - idle}' "$work/memory")
}

# measure MODEL SEQUENCES STEPS: adds a row to $work/rows.
measure() {
    local model=$1 sequences=$2 steps=$3 tokens step rate held ours theirs=- their_peak=-
    measured 60 $build/tiny-ddp --model "$model" --batch "$sequences" --data "$work/$model.bin" --steps "$steps" --log "$log"
    tokens=$(field tokens_per_second)
    step=$(field seconds)
    held=$(field memory_bytes)
    rate=$(mfu)
    ours=$peak
    tail -n 1 "$work/out"
    if [ "$torch" ]; then
        measured 150 python3 tests/bench/torch_baseline.py --model "$model" --batch "$sequences"
        cat "$work/out"
        theirs=$(awk '$1 == "result" {print $6}' "$work/out")
        their_peak=$peak
    fi
    echo "$model:$sequences $tokens $step ${rate:--} $held $ours $theirs $their_peak" >> "$work/rows"
}

echo "$(nvidia-smi -i "$gpu" --query-gpu=name,driver_version --format=csv,noheader | sed 's/,/, driver/'), $(date +%F)"
command -v python3 > /dev/null || { echo "no python3 to draw tokens with: the GPU's part is skipped"; exit 0; }
torch=$(torch_version)
if [ "$torch" ]; then echo "PyTorch $torch"; else echo "no PyTorch here: no baseline"; fi
idle=$(used)

token_file 50304 "$work/124m.bin"
token_file 128256 "$work/1b.bin"
measure 124m 64 30
measure 124m 4 30
measure 1b 4 20

measured 60 $build/device_rate 124m:64 124m:4 1b:4
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
