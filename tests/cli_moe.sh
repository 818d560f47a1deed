# The command line of tiny-moe. Sourced by run.sh, after cli.sh.

moe=build/fp32/tiny-moe
nano_moe="--model nano-moe --steps 3 --data LICENSE"
ddp=$moe # what refused() runs
refused "ep that does not divide the ranks" "--ep 3: must divide the number of ranks, 4" 4 $nano_moe --ep 3
refused "ep that does not divide the experts" "--ep 4: must divide the number of experts, 6" 4 $nano_moe --ep 4 --experts 6
refused "more experts for a row than there are" "--top-k 9: must be at most the model's experts, 8" 2 $nano_moe --top-k 9
refused "room for less than the balanced load" "--expert-room 0.5: must be at least 1" 2 $nano_moe --expert-room 0.5
refused "two chunks with a capacity" "--expert-overlap 1: not with --capacity" 2 $nano_moe --expert-overlap 1 --capacity 1
refused "verify of what depends on the ranks" "--verify: not with --capacity" 2 $nano_moe --verify --capacity 1
refused "an unknown router" "--router argmax: must be one of softmax|sigmoid" 2 $nano_moe --router argmax
refused "an unknown balance" "--balance luck: must be one of aux|seq-aux|bias|none" 2 $nano_moe --balance luck
refused "a balance loss of negative weight" "--aux-coef -0.5: must be at least 0" 2 $nano_moe --aux-coef -0.5
refused "a bias that moves backwards" "--bias-rate -0.5: must be at least 0" 2 $nano_moe --balance bias --bias-rate -0.5
refused "a weight of a loss that is not there" "--aux-coef 0.1: goes with --balance aux or seq-aux" 2 $nano_moe --balance bias --aux-coef 0.1
refused "a rate of a bias that is not there" "--bias-rate 0.1: goes with --balance bias" 2 $nano_moe --bias-rate 0.1
refused "more rows of experts than a collective takes" "is more than one collective takes; --accumulate cuts them" 2 $nano_moe --seq 2048 --batch 131068 --experts 512 --top-k 64 --show memory
refused "matrices of experts with too many rows" "--experts 1024: the matrices of a layer's experts have more than 2147483647 rows" 2 $nano_moe --experts 1024 --expert-ff 1048576 --show memory
refused "no expert" "--experts 0: must be a whole number from 1" 2 $nano_moe --experts 0
fixture="--model tests/fixtures/qwen3_moe --seq 20 --batch 4 --data LICENSE --steps 2"
with_weights="not with a folder of weights, --model tests/fixtures/qwen3_moe, which has"
refused "another number of experts than the weights have" "--experts 4: $with_weights 8" 2 $fixture --experts 4
refused "another width of experts than the weights have" "--expert-ff 10: $with_weights 24" 2 $fixture --expert-ff 10
refused "a shared expert that the weights do not have" "--shared-ff 12: $with_weights 0" 2 $fixture --shared-ff 12
refused "weights without experts" "--model tests/fixtures/qwen3: the folder's weights have no experts" 2 $fixture --model tests/fixtures/qwen3
ddp=build/fp32/tiny-hybrid
refused "another number of experts than the weights have, in tiny-hybrid" "--experts 4: $with_weights 8" 2 $fixture --experts 4
ddp=build/fp32/tiny-ddp
refused "experts in a trainer that has no scheme for them" "--model nano-moe: has experts; tiny-moe and tiny-hybrid train it" 2 $nano_moe

for flags in "" "--ep 2 --accumulate 2 --ignore 0.5" "--ep 1" "--balance seq-aux --z-loss 0.01 --shared-ff 10 --expert-overlap 1" \
    "--router sigmoid --balance bias --recompute" "--renormalize 0 --top-k 8 --balance none" "--ep 2 --bucket-mb 0"; do
    run 4 build/fp64/tiny-moe $nano_moe $flags --verify --ledger --sample 5
    verdict "tiny-moe $flags: verify passes, the ledger agrees" verified
done
run 4 $moe --model nano --steps 3 --data LICENSE --experts 4 --verify --ledger
verdict "tiny-moe: a dense preset becomes one of experts" verified
run 4 build/fp64/tiny-moe --model tests/fixtures/qwen3_moe --seq 20 --batch 4 --data tests/fixtures/qwen3_moe/config.json --steps 2 --verify --device cpu
verdict "tiny-moe trains a folder of Qwen3-MoE" verified
run 4 $moe $nano_moe --expert-room 1
verdict "tiny-moe: too little room ends the job, and names the room that is needed" said 1 "--expert-room: layer [01]: [0-9]* rows arrive at this rank, and it has room for 1152; this takes --expert-room [1-4]\.[0-9]*"
for layer in 0 1; do # each layer has its own load
    needed=$(grep -o 'takes --expert-room [0-9.]*' "$work/err" | awk '{print $3}' | sort -n | tail -1)
    run 4 $moe $nano_moe --expert-room "${needed:-$enough}" --steps 1
    enough=$needed
done
verdict "tiny-moe: with that room the step runs" [ $status = 0 ]
run 4 $moe $nano_moe --capacity 0.9 --ledger
verdict "tiny-moe: a capacity drops rows, and the ledger counts them" [ $status = 0 -a "$(awk '/^ledger: layer/ {n += $NF} END {print n}' "$work/out")" -gt 100 ]
run 4 $moe $nano_moe --steps 1 --log "$work/log" --dump "$work/dump"
verdict "tiny-moe: the log has the auxiliary loss" grep -q '"loss":5[.0-9]*,"aux":0[.0-9]*' "$work/log"
run 1 $moe --model nano-moe --show shards --world 4
verdict "tiny-moe --show shards: who holds which experts" grep -q 'experts.down_proj  *\[8, 16, 12\] .*0: experts 0 to 1 | 1: experts 2 to 3' "$work/out"
steps_of() { # FLAGS...: the losses and the norm of each step on one rank
    run 1 $moe --data LICENSE --steps 3 "$@"
    sed -n 's/  lr .*//; /^step 3/p' "$work/out" # the last step has seen the effect of all others
}
while IFS='|' read -r others flag; do
    [ "$others" = "${before-none}" ] || without=$(steps_of --model nano-moe $others)
    before=$others
    with=$(steps_of --model nano-moe $others $flag)
    verdict "tiny-moe: $flag changes what is trained" [ -n "$without" -a -n "$with" -a "$without" != "$with" ]
done << 'END'
|--experts 4
|--top-k 3
|--expert-ff 10
|--shared-ff 10
|--router sigmoid
|--renormalize 0
|--balance none
|--aux-coef 0.1
|--z-loss 0.01
|--capacity 0.9
--balance none|--balance seq-aux
--balance none|--balance bias
--balance bias|--bias-rate 0.1
END
while IFS='|' read -r some rest; do
    by_default=$(steps_of --model nano $some)
    spelled=$(steps_of --model nano $some $rest)
    verdict "tiny-moe: a dense preset's experts are those of $rest" [ -n "$spelled" -a "$by_default" = "$spelled" ]
done << 'END'
|--experts 8 --top-k 2 --expert-ff 24 --shared-ff 0 --router softmax --renormalize 1 --balance aux --aux-coef 0.01 --z-loss 0
--balance bias|--bias-rate 0.001
END
all_to_alls() { # FLAGS...: how many of them a run of 2 ranks started
    run 2 $moe $nano_moe --ledger "$@"
    awk '/^ledger: ep .*all_to_all_v/ { print $4 }' "$work/out"
}
whole=$(all_to_alls)
verdict "tiny-moe: --expert-overlap 1 sends twice as often" [ "$(all_to_alls --expert-overlap 1)" = $((2 * ${whole:-1})) ]
mkdir -p build/exercise
sed '/^static Route/,$d' tiny-moe/expert_parallel.c > build/exercise/my_experts.c
awk '/^<!-- file my_experts.c -->/ { found = 1; next } found && /^```$/ { exit } found && !/^```/' tiny-moe/README.md >> build/exercise/my_experts.c
mine=build/fp64-debug/obj/build/exercise/my_experts.o
rm -f $mine
make --no-print-directory CUDA=0 PRECISION=fp64 DEBUG=1 $mine > "$work/out" 2> "$work/err"
verdict "the skeleton of my_experts.c compiles" [ -s $mine ]
for bug in balance_of_my_rows expert_sum_over_all norm_of_my_shard skip=ep.all_to_all_v.1 skip=edp.all_reduce skip=data.all_reduce.2; do
    run 4 build/fp64-bugs/tiny-moe $nano_moe --ep 2 --verify --bug $bug
    verdict "tiny-moe: verify fails under --bug $bug" [ $status = 1 -a "$(grep -c '^verify: FAIL' "$work/out")" = 1 ]
done
run 4 build/fp64-bugs/tiny-moe $nano_moe --ep 2 --verify --bug skip=edp.all_reduce
verdict "tiny-moe: verify compares replicas of experts" grep -q '^verify: replicas of model.layers.0.mlp.experts.gate_up_proj differ' "$work/out"
run 4 build/fp64-debug/tiny-moe $nano_moe --verify --sample 5 --accumulate 2 --ep 2
verdict "tiny-moe: the debug build finds nothing" [ $status = 0 ]
run 4 build/fp32-san/tiny-moe $nano_moe --verify --sample 5 --accumulate 2 --expert-overlap 1
verdict "tiny-moe: the sanitizers find nothing" [ $status = 0 ]
