#!/bin/bash
# make bench on several GPUs, in bf16: prints the speed of every trainer on all GPUs beside that of tiny-ddp on one GPU,
# and of PyTorch DDP and FSDP2 if it is installed. Each GPU has as many sequences as the single GPU has. Numbers of a
# step are medians over all steps but the first five. The hidden part of communication comes from step 6 of a separate
# run with --trace.
#
# GPUS=2 BUILD=fp32 MODELS=nano tests/bench/gpus.sh tries the script out on a CPU.
set -eu
cd "$(dirname "$0")/../.."
. tests/lib.sh
. tests/bench/lib.sh
build=build/${BUILD:-bf16}
gpus=${GPUS:-$(sh common/tools/gpus | wc -l)}
export CUDA_DEVICE_ORDER=PCI_BUS_ID

# measure NAME RANKS SEQUENCES STEPS PROGRAM FLAGS...: prints a row. $one is tokens/s of the first row, on one GPU. The
# column "of one x" is tokens/s of each GPU divided by $one.
measure() {
    local name=$1 ranks=$2 sequences=$3 steps=$4 program=$5 tokens held rate hidden=-
    shift 5
    set -- $MPIRUN -q -n "$ranks" $build/$program --model $model --data "$work/$model.bin" --batch $((ranks * sequences)) "$@"
    watched 120 "$@" --steps "$steps" --log "$log" || return 0
    tokens=$(field tokens_per_second)
    held=$(field memory_bytes)
    rate=$(mfu)
    one=${one:-$tokens}
    if [ "$ranks" != 1 ]; then
        watched 120 "$@" --steps 6 --trace "$work/trace" || return 0
        hidden=$(sh common/tools/hidden "$work/trace" 6 | sed 's/^step 6 *//; s/collectives/ /; s/waits/ /; s/hidden/ /')
    fi
    awk -v name="$name" -v r="$ranks" -v t="$tokens" -v one="$one" -v m="${rate:--}" -v h="$held" -v hidden="$hidden" \
        'BEGIN {printf "%-34s %4d %10.0f %8.2f %7s %9.0f   %s\n", name, r, t, t / one / r, m, h / 1048576, hidden}'
}

# baseline MODE SEQUENCES: prints PyTorch's row.
baseline() {
    watched 200 torchrun --standalone --nproc_per_node="$gpus" tests/bench/torch_baseline.py --model "$model" --mode "$1" --batch "$2" || return 0
    awk -v name="PyTorch $1" -v r="$gpus" -v one="$one" \
        '$1 == "result" {printf "%-34s %4d %10.0f %8.2f\n", name, r, $6, $6 / one / r}' "$work/out"
}

torch=$(torch_version)
for model in ${MODELS:-124m 1b}; do
    case $model in
    124m) vocab=50304 sequences=64 steps=30 ;;
    1b) vocab=128256 sequences=4 steps=20 ;;
    *) vocab=256 sequences=48 steps=20 ;;
    esac
    token_file $vocab "$work/$model.bin"
    one=
    echo
    echo "$model, $sequences sequences a GPU      ranks   tokens/s  of one x   MFU %  MiB each   a step   collectives, waits, hidden"
    measure "tiny-ddp" 1 $sequences $steps tiny-ddp
    measure "tiny-ddp" "$gpus" $sequences $steps tiny-ddp
    for strategy in zero1 zero2 zero3 fsdp; do
        measure "tiny-fsdp $strategy" "$gpus" $sequences $steps tiny-fsdp --strategy $strategy
    done
    measure "tiny-megatron sp 0" "$gpus" $sequences $steps tiny-megatron --sp 0
    for chunks in 1 4; do
        measure "tiny-megatron sp 1, $chunks chunks" "$gpus" $sequences $steps tiny-megatron --overlap-chunks $chunks
    done
    if [ "$torch" ]; then
        baseline ddp $sequences
        baseline fsdp2 $sequences
    fi
done
