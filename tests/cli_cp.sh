# The command line of tiny-cp. Sourced by run.sh, after cli.sh.

cp=build/fp32/tiny-cp
ddp=$cp # what refused() runs
refused "cp that does not divide the ranks" "--cp 3: must divide the number of ranks, 4" 4 $nano --cp 3
refused "a sequence that zigzag cannot cut" "--seq 44: must be a multiple of 8, so that zigzag can cut it for --cp 4" 4 $nano --seq 44
refused "a sequence that cp does not divide" "--seq 42: must be a multiple of 4, so that contiguous can cut it for --cp 4" 4 $nano --seq 42 --layout contiguous
refused "teams that do not divide cp" "--ulysses-size 3: must divide --cp 4" 4 $nano --ulysses-size 3
refused "a team of another size than ulysses has" "--ulysses-size 2: with --method ulysses it is --cp, 4" 4 $nano --method ulysses --ulysses-size 2
refused "a team larger than the heads" "--ulysses-size 16: must divide the 8 heads" 16 $nano --method ulysses --seq 64
refused "more rows than a message takes" "--batch: 4194304 rows of a micro-step on each rank are more than one message takes" 2 --model 1b --seq 131072 --batch 64 --data LICENSE --show plan
refused "a prefix as long as the sequence" "--prefix 48: must be less than --seq 48" 2 $nano --prefix 48
refused "a document's token without documents" "--document 10: goes with --pack" 2 $nano --document 10
refused "an unknown method" "--method star: must be one of ring|ulysses|allgather" 2 $nano --method star
refused "a document that is no token" "--document -2: must be a whole number from -1" 2 $nano --document -2
ddp=build/fp32/tiny-ddp

for flags in "" "--method allgather --accumulate 2 --ignore 0.5" "--method ulysses" "--ulysses-size 2 --recompute" \
    "--layout contiguous --window 5 --cp 2" "--pack --document 101 --prefix 4"; do
    run 4 $cp $nano $flags --verify --ledger --sample 5
    verdict "tiny-cp $flags: verify passes, the ledger agrees" verified
done
run 8 build/fp64/tiny-cp $nano --method ulysses --verify --ledger
verdict "tiny-cp: ranks of a team share each kv head" verified
for flags in "--cp 4" "--cp 4 --method ulysses" "--cp 2 --method allgather --window 7"; do
    window=$(echo "$flags" | grep -o '\-\-window.*')
    run 4 build/fp64/tiny-cp $nano $flags --sample 40
    grep -v '^step\|^model\|^data\|^mesh' "$work/out" > "$work/text-of-four"
    run 1 build/fp64/tiny-ddp $nano $window --sample 40
    verdict "four ranks that share a sequence write what one writes: $flags" [ "$(wc -c < "$work/text-of-four")" -gt 39 -a "$(grep -v '^step\|^model\|^data\|^mesh' "$work/out")" = "$(cat "$work/text-of-four")" ]
done
run 4 build/fp64/tiny-cp $nano --seq 64 --layout contiguous --window 16 --ledger
verdict "a window ends the ring with step 1" [ "$(grep 'cp  *send_receive' "$work/out" | awk '{print $4}')" = 24 ]
for flags in "--layout contiguous" "--method ulysses" "--ulysses-size 2"; do
    run 4 $cp $nano $flags --ledger # 3 steps of 48 sequences; a row of 48 sees the keys before it and its own
    verdict "tiny-cp $flags: the ranks' pairs add up to all" [ "$(awk '/^  rank [0-9]*: / { sum += $3 } END { print sum }' "$work/out")" = $((3 * 48 * 48 * 49 / 2)) ]
done
for flags in "" "--method allgather" "--method ulysses" "--ulysses-size 2"; do
    $cp --show plan --world 4 $nano --seq 1024 --batch 1 $flags > "$work/plan"
    run 4 $cp $nano --seq 1024 --batch 1 --steps 1 $flags --ledger # nano has two layers
    verdict "tiny-cp $flags: the plan has the bytes of the ledger" [ "$(awk '/KiB/ { sum += $(NF - 1) } END { print 2 * 1024 * sum }' "$work/plan")" = "$(awk '$2 == "cp" || $2 == "ulysses" { sum += $6 } END { print sum }' "$work/out")" ]
done
mkdir -p build/exercise
awk '/^<!-- file my_ring.c -->/ { found = 1; next } found && /^```$/ { exit } found && !/^```/' tiny-cp/README.md > build/exercise/my_ring.c
mine=build/fp64-debug/obj/build/exercise/my_ring.o
rm -f $mine
make --no-print-directory CUDA=0 PRECISION=fp64 DEBUG=1 $mine > "$work/out" 2> "$work/err"
verdict "the skeleton of my_ring.c compiles" [ -s $mine ]
for bug in shift_after_cut local_positions lse_not_merged skip=cp.send_receive.1 skip=dp.all_reduce; do
    run 4 build/fp64-bugs/tiny-cp $nano --verify --bug $bug
    verdict "tiny-cp: verify says FAIL under --bug $bug" grep -q '^verify: FAIL' "$work/out"
done
run 4 build/fp64-debug/tiny-cp $nano --verify --sample 5 --accumulate 2 --ulysses-size 2
verdict "tiny-cp: the debug build finds nothing" [ $status = 0 ]
run 4 build/fp32-san/tiny-cp $nano --verify --sample 5 --accumulate 2 --ulysses-size 2
verdict "tiny-cp: the sanitizers find nothing" [ $status = 0 ]
