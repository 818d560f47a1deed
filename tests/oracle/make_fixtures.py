"""Make the oracle fixtures: tiny random Hugging Face models, differentiated by PyTorch in true float64.

    python3 tests/oracle/make_fixtures.py tests/fixtures        (needs torch and transformers; the tests themselves do not)

Finite differences prove that our backward fits our forward; only an outside program can prove that our forward is Llama.
One folder per case:
    config.json, model.safetensors   the model as `transformers` saves it (fp32 weights)
    oracle.safetensors               input_ids, labels [B, T] (-100: ignored)  int64
                                     logits [B, T, V], loss [1]                 mean over counted labels, shifted by one
                                     grad.NAME                                  before clipping, at step 1
                                     losses, grad_norms [STEPS], final.NAME     a clipped AdamW run on the same batch
                                     balances [STEPS]                           balance losses of models with experts
and recipe.json, the optimizer's constants.

Stock models cast to float32 inside RMSNorm, the rotary table, softmax and the loss. So the script works in two halves:
the first saves the weights in float32; the second renames float64 to float32, so that every such cast rounds nothing.
"""
import json
import os
import sys

import torch
import transformers as tf
from safetensors.torch import save_file

STEPS, LR, BETAS, EPS, DECAY, CLIP = 4, 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
COMMON = dict(num_hidden_layers=2, attention_dropout=0.0, use_cache=False, max_position_embeddings=64)
CASES = {
    # grouped-query attention, untied, an odd vocabulary
    "llama": tf.LlamaConfig(hidden_size=32, intermediate_size=72, num_attention_heads=4, num_key_value_heads=2,
                            vocab_size=131, tie_word_embeddings=False, rms_norm_eps=1e-5, **COMMON),
    # QK-norm, head_dim that is not width / heads, tied, another theta and epsilon
    "qwen3": tf.Qwen3Config(hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2,
                            head_dim=16, vocab_size=160, tie_word_embeddings=True, rms_norm_eps=1e-6,
                            rope_parameters=dict(rope_type="default", rope_theta=500000.0), **COMMON),
    # two of four experts, their weights renormalized; the balance loss is part of the loss
    "mixtral": tf.MixtralConfig(hidden_size=32, intermediate_size=40, num_attention_heads=4, num_key_value_heads=2,
                                vocab_size=131, tie_word_embeddings=False, rms_norm_eps=1e-5, num_local_experts=4,
                                num_experts_per_tok=2, router_aux_loss_coef=0.02, output_router_logits=True, **COMMON),
    # three of eight experts, their weights not renormalized
    "qwen3_moe": tf.Qwen3MoeConfig(hidden_size=32, intermediate_size=64, moe_intermediate_size=24, num_experts=8,
                                   num_experts_per_tok=3, norm_topk_prob=False, decoder_sparse_step=1,
                                   num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=160,
                                   tie_word_embeddings=True, rms_norm_eps=1e-6, router_aux_loss_coef=0.05,
                                   output_router_logits=True, **COMMON),
}


def save_models(out):
    """First half, in float32: weights spread widely enough that every path of the model matters."""
    for seed, (name, config) in enumerate(CASES.items(), start=1):
        torch.manual_seed(seed)
        config._attn_implementation = config._experts_implementation = "eager"
        model = tf.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn_like(p) * 0.08 if p.ndim > 1 else 1 + torch.randn_like(p) * 0.1)
        model.save_pretrained(os.path.join(out, name), safe_serialization=True)


def float64_everywhere():
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)


def widen(model, config):
    """The saved weights in float64, the rotary table drawn again in float64."""
    model = model.double()
    theta = config.rope_parameters["rope_theta"]
    for module in model.modules():
        if hasattr(module, "inv_freq"):
            n = module.inv_freq.numel()
            module.inv_freq = 1.0 / theta ** (torch.arange(0, n, dtype=torch.float64) / n)
            module.original_inv_freq = module.inv_freq
    return model


def main_and_balance(model, config, ids, labels):
    """The mean loss, and the balance loss of `transformers` from the routers' logits. (Some versions hand their balance
    loss probabilities in place of logits; so the logits are taken from the routers' inputs.)"""
    if "num_experts_per_tok" not in config.to_dict():
        output = model(input_ids=ids, labels=labels)
        return output, output.loss, output.loss * 0
    logits, hooks = [], []
    for name, module in model.named_modules():
        if name.endswith(".gate"):
            hooks.append(module.register_forward_pre_hook(
                lambda m, x: logits.append(torch.nn.functional.linear(x[0].reshape(-1, config.hidden_size), m.weight))))
    output = model(input_ids=ids, labels=labels, output_router_logits=False)
    for hook in hooks:
        hook.remove()
    assert len(logits) == config.num_hidden_layers
    E = config.num_local_experts if hasattr(config, "num_local_experts") else config.num_experts
    balance = tf.models.mixtral.modeling_mixtral.load_balancing_loss_func(tuple(logits), E, config.num_experts_per_tok)
    return output, output.loss, config.router_aux_loss_coef * balance


def batch(config, seed):
    ids = torch.randint(0, config.vocab_size, (2, 24), generator=torch.Generator().manual_seed(seed))
    labels = ids.clone()
    labels[0, :3] = -100
    labels[1, 9:20] = -100  # the two sequences count unequally many labels
    return ids, labels


def differentiate(model, config, seed):
    """Second half: logits, loss, every gradient, and the AdamW run."""
    ids, labels = batch(config, seed)
    record = {"input_ids": ids, "labels": labels}
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([dict(params=matrices, weight_decay=DECAY), dict(params=vectors, weight_decay=0.0)],
                                  lr=LR, betas=BETAS, eps=EPS)
    losses, balances, norms = [], [], []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        output, loss, balance = main_and_balance(model, config, ids, labels)
        assert loss.dtype == balance.dtype == output.logits.dtype == torch.float64
        (loss + balance).backward()
        if step == 0:
            record["logits"] = output.logits.detach().contiguous()
            record["loss"] = loss.detach().reshape(1)
            record.update({"grad." + n: p.grad.clone().contiguous() for n, p in model.named_parameters()})
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        losses.append(loss.item())
        balances.append(balance.item())
        optimizer.step()
    record["losses"], record["grad_norms"] = torch.tensor(losses), torch.tensor(norms)
    record["balances"] = torch.tensor(balances)
    record.update({"final." + n: p.detach().clone().contiguous() for n, p in model.named_parameters()})
    return record


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    save_models(out)
    models = {name: tf.AutoModelForCausalLM.from_pretrained(os.path.join(out, name), dtype=torch.float32,
                                                            attn_implementation="eager",
                                                            experts_implementation="eager").train() for name in CASES}
    float64_everywhere()
    for seed, (name, config) in enumerate(CASES.items(), start=101):
        record = differentiate(widen(models[name], config), config, seed)
        save_file(record, os.path.join(out, name, "oracle.safetensors"))
        print(name, "losses", record["losses"].tolist(), "norms", record["grad_norms"].tolist())
        os.path.exists(p := os.path.join(out, name, "generation_config.json")) and os.remove(p)
    with open(os.path.join(out, "recipe.json"), "w") as f:
        json.dump(dict(steps=STEPS, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, clip=CLIP,
                       torch=torch.__version__, transformers=tf.__version__), f, indent=1)


main()
