/* The constants of a model, the slice of them that one tensor-parallel rank has, and counts computed from them. */
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
    int max_seq;     /* the largest T: the RoPE table has so many positions; the run sets it (--seq), not the model */
    bool tied;       /* the head and the embedding are one weight */
    bool qk_norm;    /* RMSNorm over each head of q and k (Qwen3) */
    double theta;    /* RoPE's base */
    double eps;      /* of RMSNorm */
    double init_std; /* standard deviation of the first weights; o_proj and down_proj get init_std / sqrt(2L) */
} ModelConfig;

/* --- exact counts, from the constants --- */

/* Weights that multiply every row: the matrices of the layers, and the head. The embedding is a look-up and not
 * counted. */
size_t model_matmul_weights(const ModelConfig *config);

/* FLOPs of one forward and backward pass: 6 for each matmul weight and row, and 12 D for each head, layer and (query,
 * key) pair that the mask allows; `area` is the number of these pairs. Attention has two products forward and four
 * backward, and each costs a multiplication and an addition. */
double model_flops(const ModelConfig *config, int64_t rows, int64_t area);

/* Bytes of activations that a model, or a slice of one, holds for micro-steps of `rows` rows. The RoPE table and the
 * loss are included. With recompute each layer keeps its input only, and all layers share one set of the rest. The
 * residual stream and its norms have rows / stream_parts rows. */
size_t model_activation_bytes(const ModelConfig *config, size_t rows, bool recompute, size_t stream_parts);

/* The slice of the model that one of `tp` ranks has: heads / tp, ff / tp, vocab / tp rounded up, and kv_heads / tp
 * but at least one. tp 0 means 1. */
ModelConfig model_config_slice(const ModelConfig *config, int tp);

/* NULL, or a complaint if the model cannot be split over `tp` ranks. */
const char *model_config_check_slice(const ModelConfig *config, int tp);
