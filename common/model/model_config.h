/* The constants of a model, what of them one of several ranks has, and counts that follow from them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    char name[32];
    int layers;      /* L */
    int width;       /* C */
    int heads;       /* H */
    int kv_heads;    /* K, divides H */
    int head_dim;    /* D, even */
    int ff;          /* F */
    int vocab;       /* V */
    int max_seq;     /* T at most: what the RoPE table covers; set by the run, not by the model */
    bool tied;       /* the head's weight is the embedding's */
    bool qk_norm;    /* RMSNorm over each head of q and k (Qwen3) */
    double theta;    /* RoPE's base */
    double eps;      /* of the norms */
    double init_std; /* of the matrices; o_proj and down_proj get init_std / sqrt(2L) */
} ModelConfig;

/* --- exact counts, from the constants --- */

size_t model_matmul_weights(const ModelConfig *config); /* weights that multiply every row; a tied head counts once */

/* Of forward and backward: 6 per matmul weight and row, and 12 D per head, layer and (query, key) pair that the mask
 * allows (`area`): two products forward, four backward, a multiplication and an addition each. */
double model_flops(const ModelConfig *config, int64_t rows, int64_t area);

/* Bytes of activations that a model (or a slice of one) holds for micro-steps of `rows` rows, with its RoPE table and the loss.
 * Under recompute each layer keeps its input alone, and one set of the rest is shared. Of the residual stream and its norms
 * there are rows / stream_parts. */
size_t model_activation_bytes(const ModelConfig *config, size_t rows, bool recompute, size_t stream_parts);

/* What one of `tp` ranks has of every layer: heads / tp, ff / tp, kv heads / tp but at least one, and of the vocabulary a tp-th,
 * rounded up. tp 0 stands for 1. */
ModelConfig model_config_slice(const ModelConfig *config, int tp);

/* NULL, or a complaint about a model that cannot be cut for `tp` ranks. */
const char *model_config_check_slice(const ModelConfig *config, int tp);
