# The command line of tiny-fsdp. Sourced by run.sh, after cli.sh.

fsdp=build/fp32/tiny-fsdp
ddp=$fsdp # what refused() runs
refused "shard size without hsdp" "--shard-size 2: goes with --strategy hsdp" 4 $nano --shard-size 2
refused "shard size that does not divide" "--shard-size 3: must divide the number of ranks, 4" 4 $nano --strategy hsdp --shard-size 3
refused "half of three ranks" "--strategy hsdp: half of 3 ranks is no whole number" 3 $nano --strategy hsdp
refused "a flag of fsdp with zero1" "--reshard 0: goes with --strategy fsdp or hsdp" 2 $nano --strategy zero1 --reshard 0
refused "a flag of fsdp with ddp" "--reduce real: goes with --strategy fsdp or hsdp" 2 $nano --strategy ddp --reduce real
refused "prefetch with zero3" "--prefetch 0: goes with --strategy ddp, fsdp or hsdp" 2 $nano --strategy zero3 --prefetch 0
refused "unknown strategy" "--strategy zero4: must be one of ddp|zero1|zero2|zero3|fsdp|hsdp" 2 $nano --strategy zero4
refused "more than the memory cap" "--memory-cap 0.004: a rank of this run holds" 2 $nano --memory-cap 0.004
ddp=build/fp32/tiny-ddp

for strategy in ddp zero1 zero2 zero3 fsdp hsdp; do
    run 4 $fsdp $nano --strategy $strategy --verify --ledger --accumulate 2 --ignore 0.5 --sample 5
    verdict "$strategy: verify passes, the ledger agrees" verified
done
run 3 build/fp64/tiny-fsdp $nano --recompute --accumulate 4 --accumulate-sharded 0 --reshard 0 --verify --ledger
verdict "fsdp: whole gradients, kept layers, recompute" verified

# A sum of two numbers has no order, so on two ranks all strategies give the same bits; a dump puts the shards together.
for strategy in ddp zero1 zero2 zero3 fsdp; do
    run 2 $fsdp $nano --strategy $strategy --clip 0 --dump "$work/dump-$strategy"
    verdict "$strategy: two ranks dump the bits of ddp" cmp -s "$work/dump-$strategy" "$work/dump-ddp"
done

# The fixture has 131 words; a file of that many tokens at most is random data enough.
head -c 600 LICENSE | tr '\200-\377' ' ' > "$work/ascii"
for strategy in ddp zero1 zero2 zero3 fsdp; do
    run 2 $fsdp --model tests/fixtures/llama --data "$work/ascii" --seq 16 --batch 4 --steps 2 --strategy $strategy --clip 0 --dump "$work/dump-$strategy"
    verdict "$strategy: weights loaded from a folder end like ddp's" cmp -s "$work/dump-$strategy" "$work/dump-ddp"
done

# The cap watches every allocation, so a run that stays under its own total never held more, at the start or later.
run 1 $fsdp $nano --show memory --world 4
total=$(awk '$1 == "total" {print $2}' "$work/out")
gib() { awk -v b="$1" 'BEGIN {printf "%.12f", b / 1073741824}'; }
run 4 $fsdp $nano --memory-cap "$(gib "$((total + 1))")"
verdict "a cap of what it holds suffices from the start" [ $status = 0 ]
run 4 $fsdp $nano --memory-cap "$(gib "$((total + 1))")" --sample 3
verdict "and does not keep it from sampling" [ $status = 0 ]
run 4 $fsdp $nano --memory-cap "$(gib "$((total - 1))")"
verdict "a byte less does not" said 2 '^--memory-cap'
run 4 $fsdp $nano --strategy ddp --memory-cap "$(gib "$((total - 40000))")"
verdict "ddp does not fit where fsdp nearly did" said 2 '^--memory-cap'

run 2 $fsdp --model demo --data LICENSE --steps 3 --trace "$work/trace" --log "$work/log"
verdict "fsdp gathers a layer while another computes" [ "$(overlaps "$work/trace" all_gather)" -gt 10 ]
verdict "and reduces one while another computes" [ "$(overlaps "$work/trace" reduce_scatter)" -gt 5 ]
run 1 build/fp32/read_json "$work/trace" "$work/log"
verdict "its trace is JSON, and spans of a lane do not overlap" [ $status = 0 ]
run 2 $fsdp --model demo --data LICENSE --steps 3 --prefetch 0 --trace "$work/trace"
verdict "and without prefetch it does not" [ "$(overlaps "$work/trace" all_gather) $(overlaps "$work/trace" reduce_scatter)" = "0 0" ]

for bug in norm_of_my_shard decay_by_flat_shape overwrite_shard skip=gather.all_gather.2 skip=reduce.reduce_scatter.1 skip=model.all_reduce; do
    run 4 build/fp64-bugs/tiny-fsdp $nano --clip 0.1 --verify --accumulate 2 --bug $bug
    verdict "tiny-fsdp: verify fails under --bug $bug" [ $status = 1 ]
done
run 4 build/fp64-bugs/tiny-fsdp $nano --strategy hsdp --verify --bug skip=dp.all_reduce
verdict "hsdp: verify fails when copies are not summed" [ $status = 1 ]
run 3 build/fp64-debug/tiny-fsdp $nano --verify --sample 5 --accumulate 2
verdict "tiny-fsdp: the debug build finds nothing" [ $status = 0 ]
run 3 build/fp32-san/tiny-fsdp $nano --verify --sample 5 --accumulate 2 --reshard 0
verdict "tiny-fsdp: the sanitizers find nothing" [ $status = 0 ]
