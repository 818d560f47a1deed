/* The constants of a model, the slice of them that one tensor-parallel rank has, and counts computed from them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { ROUTER_SOFTMAX, ROUTER_SIGMOID } RouterKind;

/* How the router learns to give all experts work (balance.c). */
typedef enum { BALANCE_NONE, BALANCE_AUX, BALANCE_SEQ_AUX, BALANCE_BIAS } BalanceKind;

/* A feed-forward of experts: each row goes to some of them, chosen by a router. All zero: the feed-forward is dense. */
typedef struct {
    int experts; /* E of a layer; 0: dense */
    int top_k;   /* k, experts of a row */
    int ff;      /* feed-forward width of one expert */
    RouterKind router;
    bool renormalize; /* the weights of a row's experts are divided by their sum */
    BalanceKind balance;
    double aux_coef;  /* weight of the balance loss, for BALANCE_AUX and BALANCE_SEQ_AUX */
    double z_coef;    /* weight of the z-loss */
    double bias_rate; /* BALANCE_BIAS: what the bias changes by in a step */
    double capacity;  /* an expert takes at most so many times its balanced share of a rank's rows; 0: all (dropless) */
} MoeConfig;

typedef struct {
    char name[32];
    int layers;   /* L */
    int width;    /* C */
    int heads;    /* H */
    int kv_heads; /* K, divides H */
    int head_dim; /* D, even */
    int ff;       /* F; with experts, that of the shared expert, which every row goes through (0: there is none) */
    MoeConfig moe;
    int vocab;       /* V */
    int max_seq;     /* the largest T: the RoPE table has so many positions; the run sets it (--seq), not the model */
    bool tied;       /* the head and the embedding are one weight */
    bool qk_norm;    /* RMSNorm over each head of q and k (Qwen3) */
    double theta;    /* RoPE's base */
    double eps;      /* of RMSNorm */
    double init_std; /* standard deviation of the first weights; o_proj and down_proj get init_std / sqrt(2L) */
} ModelConfig;

/* --- exact counts, from the constants --- */

/* Weights that multiply a row: the matrices of the layers, and the head. Of experts, those of the k that the row goes
 * to. The embedding is a look-up and not counted. */
size_t model_matmul_weights(const ModelConfig *config);

/* FLOPs of one forward and backward pass: 6 for each matmul weight and row, and 12 D for each head, layer and (query,
 * key) pair that the mask allows; `area` is the number of these pairs. Attention has two products forward and four
 * backward, and each costs a multiplication and an addition. */
double model_flops(const ModelConfig *config, int64_t rows, int64_t area);

/* Bytes of activations that a model, or a slice of one, holds for micro-steps of `rows` rows. The RoPE table and the
 * loss are included. With recompute each layer keeps its input only, and all layers share one set of the rest. The
 * residual stream and its norms have rows / stream_parts rows. */
size_t model_activation_bytes(const ModelConfig *config, size_t rows, bool recompute, size_t stream_parts);

/* Bytes of activations beside these if the feed-forward is one of experts; else 0. `rows`: of the residual stream, on
 * this rank. Each of `ep` ranks has E / ep experts of a layer, and room for expert_rows rows in each of `chunks` chunks. */
size_t moe_activation_bytes(const ModelConfig *config, size_t rows, size_t ep, size_t expert_rows, size_t chunks,
                            bool recompute);

/* The slice of the model that one of `tp` ranks has: heads / tp, ff / tp, vocab / tp rounded up, and kv_heads / tp
 * but at least one. tp 0 means 1. */
ModelConfig model_config_slice(const ModelConfig *config, int tp);

/* NULL, or a complaint if the model cannot be split over `tp` ranks. */
const char *model_config_check_slice(const ModelConfig *config, int tp);
