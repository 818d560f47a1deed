# The command line of tiny-megatron. Sourced by run.sh, after cli.sh.

megatron=build/fp32/tiny-megatron
ddp=$megatron # what refused() runs
refused "tp that does not divide the ranks" "--tp 3: must divide the number of ranks, 4" 4 $nano --tp 3
refused "tp larger than the heads" "--tp 16: must divide the model's heads, 8" 16 $nano --seq 48
refused "a sequence that tp does not divide" "--seq 47: with --sp 1 must be a multiple of --tp x --overlap-chunks = 2 x 1" 2 $nano --seq 47
refused "a sequence that the chunks do not divide" "--seq 46: with --sp 1 must be a multiple of --tp x --overlap-chunks = 2 x 2" 2 $nano --seq 46 --overlap-chunks 2
refused "chunks without sp" "--overlap-chunks 2: goes with --sp 1" 2 $nano --sp 0 --overlap-chunks 2
refused "more chunks than there may be" "--overlap-chunks 17: must be a whole number from 1 to 16" 2 $nano --overlap-chunks 17
refused "more rows than a collective takes" "--batch 600: 1228800 rows in a micro-step times width 2048 are more than one collective takes" 2 --model 1b --seq 2048 --batch 600 --data LICENSE --show plan # a run would need more memory than most hosts have
ddp=build/fp32/tiny-ddp

head -c 600 LICENSE | tr "\200-\377" " " > "$work/ascii" # the fixtures have few words
for flags in "--tp 4" "--tp 2 --accumulate 2 --ignore 0.5" "--tp 4 --sp 0" "--tp 2 --overlap-chunks 3 --recompute" "--tp 1"; do
    run 4 $megatron $nano $flags --verify --ledger --sample 5
    verdict "tiny-megatron $flags: verify passes, the ledger agrees" verified
done
run 8 build/fp64/tiny-megatron $nano --verify --ledger
verdict "tiny-megatron, tp 8: two ranks share each kv head" verified
run 4 build/fp64/tiny-megatron $nano --tp 2 --verify --model tests/fixtures/qwen3 --data "$work/ascii" --seq 16 --batch 4
verdict "tiny-megatron loads a folder and equals a single device" verified
run 4 build/fp64/tiny-megatron --model tests/fixtures/qwen3 --data "$work/ascii" --seq 16 --batch 4 --steps 1
loss=$(grep -o 'loss [0-9.]*' "$work/out")
run 1 build/fp64/tiny-ddp --model tests/fixtures/qwen3 --data "$work/ascii" --seq 16 --batch 4 --steps 1
verdict "and begins with the loss of tiny-ddp" [ "$loss" = "$(grep -o 'loss [0-9.]*' "$work/out")" ]
run 4 $megatron $nano --tp 4 --sample 40
grep -v '^step\|^model\|^data\|^mesh' "$work/out" > "$work/text-of-four"
run 1 build/fp32/tiny-ddp $nano --sample 40
verdict "four ranks that share the vocabulary write what one writes" [ "$(wc -c < "$work/text-of-four")" -gt 39 -a "$(grep -v '^step\|^model\|^data\|^mesh' "$work/out")" = "$(cat "$work/text-of-four")" ]

run 2 $megatron --model demo --data LICENSE --steps 3 --overlap-chunks 4 --trace "$work/trace" --log "$work/log"
verdict "in chunks, rows travel while others are multiplied" [ "$(overlaps "$work/trace" all_gather)" -gt 10 ]
run 1 build/fp32/read_json "$work/trace" "$work/log"
verdict "tiny-megatron's trace is JSON, and spans of a lane do not overlap" [ $status = 0 ]

for bug in count_copies_in_norm skip_norm_sum local_softmax skip=tp.all_gather.3 skip=tp.reduce_scatter.2 skip=kv.all_reduce; do
    run 8 build/fp64-bugs/tiny-megatron $nano --clip 0.1 --verify --bug $bug
    verdict "tiny-megatron: verify fails under --bug $bug" [ $status = 1 ]
done
run 2 build/fp64-debug/tiny-megatron $nano --verify --sample 5 --accumulate 2
verdict "tiny-megatron: the debug build finds nothing" [ $status = 0 ]
run 2 build/fp32-san/tiny-megatron $nano --verify --sample 5 --accumulate 2 --overlap-chunks 2
verdict "tiny-megatron: the sanitizers find nothing" [ $status = 0 ]

# --- --autotune, in any trainer ---

run 2 $megatron $nano --autotune "$work/tuned" --log "$work/log"
verdict "--autotune measures, and keeps its choices" [ $status = 0 -a "$(grep -c ' = attention=\| = linear=' "$work/tuned")" = 2 -a "$(grep -c "^autotune: linear=blas .* ms$" "$work/out")" = 5 -a "$(grep -c "^autotune: linear=naive .* ms$" "$work/out")" -ge 1 ]
grep -o '"loss":[0-9.e-]*' "$work/log" > "$work/losses"
run 2 $megatron $nano --autotune "$work/tuned" --log "$work/log"
verdict "the next run believes them" [ "$(grep -c '^autotune: .*, from ' "$work/out")" = 2 -a "$(grep -c ' ms$' "$work/out")" = 0 ]
verdict "and has the same losses" [ "$(grep -o '"loss":[0-9.e-]*' "$work/log")" = "$(cat "$work/losses")" ]
ddp=$megatron
refused "an --autotune file that cannot be written" "--autotune $work/none/file: No such file" 2 $nano --autotune "$work/none/file"
cp LICENSE "$work/text"
run 2 $megatron --model nano --steps 1 --data "$work/text" --autotune "$work/text"
verdict "choices are not written into the data" [ $status = 2 -a "$(cmp LICENSE "$work/text" > /dev/null && echo same)" = same ]
ddp=build/fp32/tiny-ddp
cp LICENSE "$work/mine"
run 2 $megatron $nano --autotune "$work/mine"
verdict "nor into anybody else's file" [ $status = 2 -a "$(cmp LICENSE "$work/mine" > /dev/null && echo same)" = same ]
