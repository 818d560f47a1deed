# Numbers that are not finite: all ranks stop before the weights take them in. Sourced by run.sh.

# blows_up NAME FLAGS...: on two ranks; ends with status 1 and one line on stderr that says at which step.
blows_up() {
    local name=$1 program=$2
    shift 2
    run 2 "$program" --model nano --data LICENSE --steps 3 --warmup 0 "$@"
    stopped() {
        [ "$status" = 1 ] && [ "$(wc -l < "$work/err")" = 1 ] &&
            grep -qE '^step [23]: (the loss|the norm of the gradients) is -?(nan|inf); the weights stay as they were, and all ranks stop$' "$work/err"
    }
    verdict "stops on a number that is not finite: $name" stopped
}
blows_up "tiny-ddp" build/fp32/tiny-ddp --lr 1e6
blows_up "tiny-ddp, --verify" build/fp32/tiny-ddp --lr 1e6 --verify
blows_up "tiny-ddp, a norm with a finite loss" build/fp32/tiny-ddp --lr 1e19
blows_up "tiny-ddp, SGD" build/fp32/tiny-ddp --lr 1e30 --optimizer sgd --clip 0
blows_up "tiny-fsdp" build/fp32/tiny-fsdp --lr 1e6
blows_up "tiny-fsdp, zero1" build/fp32/tiny-fsdp --strategy zero1 --lr 1e19
blows_up "tiny-megatron" build/fp32/tiny-megatron --lr 1e6
