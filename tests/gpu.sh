# What only a GPU can show: the trainers on it, alone over NCCL and several ranks sharing it, and the kernels under
# compute-sanitizer. Sourced by run.sh; skipped, saying so, where no GPU is visible.

visible_gpus() {
    [ -n "${HAVE_CUDA:-}" ] && sh common/tools/gpus
}

verify_on_gpu() { # precision, ranks, program, flags...
    local build=$1 ranks=$2 program=$3
    shift 3
    run "$ranks" "build/$build/$program" --device cuda --data LICENSE --steps 3 --verify --ledger "$@"
    passes() {
        [ "$status" = 0 ] && grep -q '^verify: PASS' "$work/out" && grep -q ' on cuda ' "$work/out" &&
            ! grep -q DIFFERS "$work/out"
    }
    verdict "GPU: $program, $build, $ranks ranks, $*: $(sed -n 's/^verify: drift.*judged: \(.*\)/drift \1 /p' "$work/out")$(grep '^verify: [PF]' "$work/out")" passes
    if [ "$ranks" = 1 ]; then
        verdict "GPU: one rank uses NCCL" [ "$(grep -c 'share a GPU' "$work/out")" = 0 -a "$(grep -c '^step 3/3' "$work/out")" = 1 ]
    elif [ "$ranks" -gt "$gpus" ]; then
        verdict "GPU: ranks that share one say so" grep -q '^note: ranks of group [a-z]* share a GPU' "$work/out"
    else
        verdict "GPU: ranks with a GPU each use NCCL" [ "$(grep -c 'share a GPU' "$work/out")" = 0 ]
    fi
}

sanitize() { # tool, build, test
    local log=$work/sanitizer
    QUICK=1 timeout -k 5 300 "$sanitizer" --tool "$1" --error-exitcode 9 "build/$2/$3" > "$log" 2>&1
    status=$?
    : > "$work/out"
    grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|=========' "$log" | tail -20 > "$work/err"
    verdict "compute-sanitizer --tool $1 $3 ($2): $(grep -hE 'SUMMARY' "$log" | tail -1 | sed 's/=* *//')" [ "$status" = 0 ]
}

# Without the calls that return an error: NCCL finds out by them what its kernels were built for. Our own calls are checked.
sanitize_trainer() { # ranks, trainer, flags...
    local ranks=$1 trainer=$2
    shift 2
    run "$ranks" "$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 9 "build/bf16/$trainer" \
        --device cuda --model nano --data LICENSE --steps 2 --timeout 0 "$@"
    is_clean() {
        [ "$status" = 0 ] && [ "$(grep -c 'ERROR SUMMARY: 0 errors' "$work/out")" = "$ranks" ] && grep -q '^step 2/2' "$work/out"
    }
    verdict "compute-sanitizer --tool memcheck $trainer, $ranks ranks, $*" is_clean
}

gpus=$(visible_gpus | wc -l)
if [ "$gpus" = 0 ]; then
    echo "skip GPU: the trainers on it, compute-sanitizer (no GPU is visible, or this build has no CUDA)"
else
    for build in fp64 fp32 bf16; do
        for ranks in 1 2 4 8; do verify_on_gpu $build $ranks tiny-ddp --model nano --accumulate 2; done
        verify_on_gpu $build 4 tiny-ddp --model demo --bucket-mb 0
    done
    verify_on_gpu bf16 2 tiny-ddp --model demo --kernel attention=naive
    for build in fp64 fp32 bf16; do
        for ranks in 2 4; do
            for strategy in zero1 zero2 zero3 fsdp hsdp; do
                verify_on_gpu $build $ranks tiny-fsdp --model nano --accumulate 2 --ignore 0.5 --strategy $strategy
            done
        done
    done
    for build in fp64 fp32 bf16; do
        for ranks in 2 4 8; do
            for sp in 0 1; do verify_on_gpu $build $ranks tiny-megatron --model nano --tp $ranks --sp $sp --ignore 0.5; done
        done
        verify_on_gpu $build 4 tiny-megatron --model demo --tp 2 --overlap-chunks 4 --accumulate 2
    done
    for build in fp64 fp32 bf16; do
        for ranks in 2 4; do
            for method in ring allgather ulysses; do
                verify_on_gpu $build $ranks tiny-cp --model nano --method $method --ignore 0.5 --accumulate 2
            done
        done
        verify_on_gpu $build 4 tiny-cp --model nano --ulysses-size 2 --pack --document 101 --window 20
        verify_on_gpu $build 4 tiny-cp --model nano --layout contiguous --window 9 --prefix 5
    done
    verify_on_gpu bf16 4 tiny-cp --model demo --recompute
    for build in fp64 fp32 bf16; do
        for ranks in 1 2 4; do verify_on_gpu $build $ranks tiny-moe --model nano-moe --accumulate 2 --expert-room 4; done
        verify_on_gpu $build 4 tiny-moe --model nano-moe --ep 2 --router sigmoid --balance bias --shared-ff 24 --expert-overlap 1
        verify_on_gpu $build 2 tiny-moe --model demo-moe --balance seq-aux --z-loss 0.001 --recompute
    done
    for build in fp64 fp32 bf16; do
        verify_on_gpu $build 8 tiny-hybrid --model nano-moe --fsdp 2 --cp 2 --tp 2 --ep 4 --accumulate 2 --expert-room 4
        verify_on_gpu $build 8 tiny-hybrid --model nano --dp 2 --fsdp 2 --tp 2 --strategy zero3
    done
    run 4 build/bf16/tiny-moe --device cuda --model nano-moe --data LICENSE --steps 1 --expert-room 1
    verdict "GPU: too little room for experts ends the job" said 1 "this takes --expert-room"
    verify_on_gpu bf16 8 tiny-fsdp --model nano --ignore 0.5
    verify_on_gpu bf16 2 tiny-fsdp --model demo --reduce real --accumulate 2
    verify_on_gpu bf16 1 tiny-fsdp --model demo --recompute
    verify_on_gpu fp32 2 tiny-fsdp --model demo --reshard 0 --accumulate-sharded 0 --accumulate 2

    tuned="build/bf16/tiny-megatron --model demo --data LICENSE --steps 3 --tp 2 --overlap-chunks 2 --autotune $work/gpu-tuned"
    run 2 $tuned --dump "$work/measured"
    verdict "GPU: --autotune times plans of products: $(grep '^autotune: products' "$work/out")" [ "$status" = 0 -a "$(grep -c '^autotune: .* plan [0-7] of [2-8]: ' "$work/out")" -ge 12 -a "$(grep -c '^plan of ' "$work/gpu-tuned")" -ge 12 -a "$(grep -c '^plan of forward.*: 1536 rows' "$work/gpu-tuned")" -ge 4 ]
    run 2 $tuned --dump "$work/remembered"
    verdict "GPU: and does not time them again" [ "$status" = 0 -a "$(grep -c '^autotune: .* plan [0-7] of' "$work/out")" = 0 -a "$(grep -c '^autotune: .*, from ' "$work/out")" = 2 ]
    verdict "GPU: the same plans give the same bits" cmp -s "$work/measured" "$work/remembered"
    run 2 $tuned --verify --ledger
    verdict "GPU: and the numbers of a single device: $(grep '^verify: [PF]' "$work/out")" [ "$status" = 0 ]

    # 350m on four ranks: what ddp holds does not fit under a cap where fsdp trains
    printf '\210\330\064\001\001\000\000\000\000\240\000\000' > "$work/tokens.bin" # 40960 tokens of 16 bits, all below 50304
    { head -c 1012 /dev/zero; head -c 81920 /dev/urandom | tr '\200-\377' '\000-\177'; } >> "$work/tokens.bin"
    large="--model 350m --data $work/tokens.bin --batch 4 --seq 256 --recompute --steps 2 --memory-cap 4"
    run 4 build/bf16/tiny-fsdp $large --strategy ddp
    verdict "GPU: 350m under ddp does not fit under 4 GiB a rank" [ "$status" = 2 ]
    run 4 build/bf16/tiny-fsdp $large
    verdict "GPU: under fsdp it trains: $(tail -1 "$work/out")" grep -q '^step 2/2' "$work/out"

    for build in fp64 bf16; do
        run 4 build/$build/tiny-megatron --data LICENSE --steps 3 --tp 2 --overlap 1 --clip 0 --dump "$work/overlaps"
        run 4 build/$build/tiny-megatron --data LICENSE --steps 3 --tp 2 --overlap 0 --clip 0 --dump "$work/waits"
        verdict "GPU: $build, tp 2 times dp 2, overlapping does not change a bit" cmp -s "$work/overlaps" "$work/waits"
    done
    for build in fp64 fp32 bf16; do
        run 2 build/$build/tiny-ddp --data LICENSE --steps 3 --overlap 1 --clip 0 --dump "$work/overlaps"
        run 2 build/$build/tiny-ddp --data LICENSE --steps 3 --overlap 0 --clip 0 --dump "$work/waits"
        verdict "GPU: $build, overlapping does not change a bit" cmp -s "$work/overlaps" "$work/waits"
        run 2 build/$build/tiny-fsdp --data LICENSE --steps 3 --prefetch 1 --clip 0 --dump "$work/overlaps"
        run 2 build/$build/tiny-fsdp --data LICENSE --steps 3 --prefetch 0 --clip 0 --dump "$work/waits"
        verdict "GPU: $build, prefetching does not change a bit" cmp -s "$work/overlaps" "$work/waits"
    done
    for trainer in tiny-ddp tiny-fsdp tiny-megatron; do
        verdict "GPU: $trainer, a killed rank ends the run" loses_a_rank KILL 60 2 build/bf16/$trainer --data LICENSE
    done
    verdict "GPU: a stopped rank ends the run" loses_a_rank STOP 60 2 build/bf16/tiny-ddp --data LICENSE --timeout 10
    verdict "GPU: and the other says where it waits" grep -q 'waiting in all_reduce .* on ' "$work/err"

    run 2 build/bf16/tiny-ddp --model demo --data LICENSE --steps 3 --trace "$work/trace" --log "$work/log"
    verdict "GPU: a run with a trace" [ "$status" = 0 ]
    verdict "GPU: the trace has the GPU's time and the host's" [ "$(grep -c '"cat":"compute"' "$work/trace")" -gt 20 -a "$(grep -c '"cat":"host"' "$work/trace")" -gt 20 ]
    run 1 build/fp32/read_json "$work/trace" "$work/log"
    verdict "GPU: and its spans do not overlap" [ "$status" = 0 ]
    run 1 build/bf16/tiny-ddp --model demo --data LICENSE --steps 3 --trace "$work/trace" --log "$work/log"
    verdict "GPU: over NCCL collectives have the GPU's times" [ "$(grep -c '"name":"all_reduce","cat":"comm"' "$work/trace")" -gt 9 ]
    run 1 build/fp32/read_json "$work/trace" "$work/log"
    verdict "GPU: which do not overlap either" [ "$status" = 0 ]
    for bug in mean_of_means forget_last_bucket skip=dp.all_reduce; do
        run 3 build/bf16-bugs/tiny-ddp --model nano --data LICENSE --ignore 0.5 --steps 3 --verify --bug $bug
        verdict "GPU: bf16 verify says FAIL under --bug $bug" grep -q '^verify: FAIL' "$work/out"
    done
    run 3 build/bf16/tiny-ddp --model nano --data LICENSE --steps 9 --lr 1e30 --clip 0 --warmup 0
    verdict "GPU: a loss that is not finite stops all ranks" [ "$status" = 1 ]

    sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
    if [ -x "$sanitizer" ]; then
        for tool in memcheck racecheck; do
            for test in test_cuda test_cuda_attention test_cuda_moe; do
                for build in fp32 bf16; do sanitize $tool $build $test; done
            done
        done
        for ranks in 1 2; do
            sanitize_trainer $ranks tiny-ddp
            sanitize_trainer $ranks tiny-fsdp
            sanitize_trainer $ranks tiny-megatron --overlap-chunks $ranks
            sanitize_trainer $ranks tiny-moe --model nano-moe --expert-room 4
        done
    else
        echo "skip compute-sanitizer: it is not installed"
    fi
fi
