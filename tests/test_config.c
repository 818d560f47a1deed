/* ranks: 1  builds: fp64
 *
 * Files that a run reads, as they should not be: config.json, headers of safetensors, weights. What is wrong is refused
 * by its name; what `transformers` writes is accepted. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "kernels/memory.h"
#include "model/safetensors.h"
#include "settings/model_json.h"
#include "testing.h"

static char folder[] = "/tmp/tiny-config-XXXXXX";
static char config_path[64], weights_path[64];

static void write_file(const char *path, const void *bytes, size_t count)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, count, f), count);
    fclose(f);
}

static const char *read_text(ModelConfig *config, const char *text)
{
    write_file(config_path, text, strlen(text));
    return model_config_read(config, folder);
}

#define SIZES                                                                                                          \
    "\"num_hidden_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 4, \"intermediate_size\": 72, "           \
    "\"vocab_size\": 131"

/* A small model of this type, with these keys in front. */
static const char *read_keys(ModelConfig *config, const char *type, const char *keys)
{
    char text[4096];
    snprintf(text, sizeof text, "{%s%s\"model_type\": \"%s\", " SIZES "}", keys, *keys ? ", " : "", type);
    return read_text(config, text);
}

static void expect(const char *complaint, const char *want, const char *given)
{
    if (!complaint || !strstr(complaint, want) || strchr(complaint, '\n'))
        fail_msg("%s: got %s, want %s", given, complaint ? complaint : "no complaint", want);
}

static void refused_keys(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *want;
    } cases[] = {
        {"\"rope_parameters\": {\"type\": \"linear\", \"factor\": 4}", "type is \"linear\"; only \"default\""},
        {"\"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 4}", "rope_type is \"llama3\""},
        {"\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 5}}", "the key of RoPE, full_attention"},
        {"\"rope_parameters\": {\"rope_type\": null}", "rope_type is null"},
        {"\"rope_parameters\": {\"partial_rotary_factor\": 0.5}", "partial_rotary_factor is 0.5; only 1"},
        {"\"rope_parameters\": {\"hidden_size\": 5}", "the key of RoPE, hidden_size"},
        {"\"rope_parameters\": 7", "rope_parameters must be an object"},
        {"\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}", "type is \"linear\""},
        {"\"rope_theta\": 1e4, \"rope_parameters\": {\"rope_theta\": 5e5}", "rope_theta is given twice"},
        {"\"rope_theta\": null", "rope_theta is null"},
        {"\"rope_theta\": 0", "rope_theta is 0; must be a number from 1e-09"},
        {"\"rope_theta\": 1e400", "too large"},
        {"\"rms_norm_eps\": 1e-400", "too close to 0"},
        {"\"rms_norm_eps\": \"1e-5\"", "rms_norm_eps is \"1e-5\""},
        {"\"initializer_range\": -1", "initializer_range is -1"},
        {"\"is_causal\": false", "is_causal is false; only true"},
        {"\"hidden_act\": \"gelu\"", "hidden_act is \"gelu\"; only \"silu\""},
        {"\"hidden_act\": null", "hidden_act is null"},
        {"\"attention_bias\": true", "attention_bias is true"},
        {"\"mlp_bias\": 0", "mlp_bias is 0; only false"},
        {"\"attention_dropout\": 0.1", "attention_dropout is 0.1"},
        {"\"use_sliding_window\": true", "use_sliding_window is true"},
        {"\"sliding_window\": 16", "sliding_window is 16"},
        {"\"pretraining_tp\": 2", "pretraining_tp is 2"},
        {"\"layer_types\": [\"full_attention\", \"sliding_attention\"]", "layer_types must be"},
        {"\"layer_types\": [\"full_attention\"]", "layer_types must be"},
        {"\"layer_types\": \"full_attention\"", "layer_types must be"},
        {"\"quantization_config\": {\"bits\": 4}", "quantization_config is {\"bits\":4}"},
        {"\"per_layer_config\": {\"0\": {}}", "the key per_layer_config is not known"},
        {"\"Hidden_Size\": 32", "the key Hidden_Size is not known"},
        {"\"num_key_value_heads\": 3", "4 heads are not a multiple of 3"},
        {"\"num_key_value_heads\": 2147483649", "num_key_value_heads is 2147483649; must be a whole number"},
        {"\"head_dim\": 7", "head_dim is 7; must be even"},
        {"\"head_dim\": -8", "head_dim is -8"},
        {"\"tie_word_embeddings\": 1", "tie_word_embeddings is 1; must be true or false"},
        {"\"vocab_size\": 131", "has the key vocab_size twice"},
        {"\"id2label\": {\"0\": \"a\", \"0\": \"b\"}", "has the key 0 twice"},
        {"\"is_causal\\u0000\": true", "NUL byte"},
        {"\"is_causal\\uzzzz\": true", "malformed escape"},
        {"\"\\u001b[31m\": true", "the key \\x1b[31m is not known"},
    };
    ModelConfig c;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect(read_keys(&c, "llama", cases[i].keys), cases[i].want, cases[i].keys);
    expect(read_keys(&c, "qwen3", ""), "4 heads are not a multiple of 32", "Qwen3's default of kv heads");
    expect(read_keys(&c, "qwen3", "\"head_dim\": null"), "head_dim is null", "Qwen3's head_dim");
    expect(read_keys(&c, "mistral", ""), "model_type mistral; llama, qwen3, mixtral and qwen3_moe", "another type");
    expect(read_text(&c, "{\"model_type\": \"llama\", \"hidden_size\": 32}"), "num_hidden_layers is missing", "sizes");
}

static void refused_files(void **state)
{
    (void)state;
    ModelConfig c;
    expect(read_text(&c, "{\"model_type\": \"llama\", " SIZES "} x"), "text follows", "text after the object");
    expect(read_text(&c, "{\"model_type\": \"llama\", " SIZES "}{}"), "text follows", "another object");
    expect(read_text(&c, "{\"model_type\": \"llama\""), "not a JSON object", "half an object");
    expect(read_text(&c, "[1]"), "not a JSON object", "an array");
    expect(read_text(&c, ""), "not a JSON object", "an empty file");
    static const char nul[] = "{\"model_type\": \"llama\", " SIZES "}\0more";
    write_file(config_path, nul, sizeof nul);
    expect(model_config_read(&c, folder), "NUL byte", "a NUL byte");
    char deep[5000];
    memset(deep, '[', sizeof deep);
    write_file(config_path, deep, sizeof deep);
    expect(model_config_read(&c, folder), "not a JSON object", "deep nesting");
    if (truncate(config_path, 200000000000) == 0) /* sparse */
        expect(model_config_read(&c, folder), "200000000000 bytes; must be at most 1048576", "200 GB");
}

static void accepted(void **state)
{
    (void)state;
    ModelConfig c;
    assert_null(read_keys(&c, "llama", ""));
    assert_true(c.theta == 1e4 && c.eps == 1e-6 && c.init_std == 0.02 && !c.tied && !c.qk_norm);
    assert_true(c.kv_heads == 4 && c.head_dim == 8);
    assert_null(read_keys(&c, "llama", "\"num_key_value_heads\": null, \"head_dim\": null, \"rope_scaling\": null"));
    assert_true(c.kv_heads == 4 && c.head_dim == 8);
    assert_null(read_keys(&c, "qwen3", "\"num_key_value_heads\": null, \"rope_theta\": 3580165449"));
    assert_true(c.kv_heads == 4 && c.head_dim == 128 && c.qk_norm && c.theta == 3580165449.0);
    assert_null(read_keys(&c, "llama",
                          "\"rope_parameters\": {\"rope_theta\": 5e5, \"rope_type\": \"default\", \"type\": "
                          "\"default\", \"partial_rotary_factor\": 1.0}, \"rope_theta\": 500000"));
    assert_true(c.theta == 5e5);
    assert_null(read_keys(&c, "llama", "\"_name_or_path\": \"C:\\\\users\\\\caf\\u00e9\""));
    assert_null(read_keys(&c, "llama", "\"tie_word_embeddings\": true, \"eos_token_id\": [1, 2], \"is_causal\": true"));
    assert_true(c.tied);
    /* as transformers 4 writes them */
    assert_null(
        read_text(&c, "{\"_name_or_path\": \"x/y\", \"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": "
                      "false, \"attention_dropout\": 0.0, \"bos_token_id\": 1, \"eos_token_id\": 2, \"hidden_act\": "
                      "\"silu\", \"initializer_range\": 0.02, \"max_position_embeddings\": 2048, \"mlp_bias\": false, "
                      "\"model_type\": \"llama\", \"num_key_value_heads\": 2, \"pretraining_tp\": 1, "
                      "\"rms_norm_eps\": 1e-05, \"rope_scaling\": null, \"rope_theta\": 10000.0, \"torch_dtype\": "
                      "\"bfloat16\", \"transformers_version\": \"4.45.0\", \"use_cache\": true, " SIZES "}\n"));
    assert_null(
        read_text(&c, "{\"architectures\": [\"Qwen3ForCausalLM\"], \"attention_bias\": false, \"attention_dropout\": "
                      "0.0, \"bos_token_id\": 151643, \"eos_token_id\": 151645, \"head_dim\": 16, \"hidden_act\": "
                      "\"silu\", \"max_position_embeddings\": 40960, \"max_window_layers\": 28, \"model_type\": "
                      "\"qwen3\", \"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-06, \"rope_scaling\": null, "
                      "\"rope_theta\": 1000000, \"sliding_window\": 4096, \"tie_word_embeddings\": true, "
                      "\"use_sliding_window\": false, " SIZES "}"));
    assert_true(c.tied && c.head_dim == 16 && c.theta == 1e6);
}

/* A file with this header and as many bytes of data, all of them `fill`. */
static const char *open_header(const char *header, size_t length, size_t data, char fill)
{
    char *bytes = malloc(8 + length + data);
    uint64_t stated = length;
    memcpy(bytes, &stated, 8);
    memcpy(bytes + 8, header, length);
    memset(bytes + 8 + length, fill, data);
    write_file(weights_path, bytes, 8 + length + data);
    free(bytes);
    Safetensors *file;
    const char *complaint = safetensors_open(&file, weights_path);
    if (!complaint) safetensors_close(file);
    return complaint;
}

static void headers(void **state)
{
    (void)state;
#define ENTRY(shape, offsets) "{\"dtype\": \"F32\", \"shape\": " shape ", \"data_offsets\": " offsets "}"
    static const struct {
        const char *header, *want;
    } cases[] = {
        {"{\"a\": " ENTRY("[2]", "[0, 8]") "}  ", NULL},
        {"{\"a\": " ENTRY("[2]", "[0, 8]") "} x", "text follows"},
        {"{\"a\": " ENTRY("[2]", "[0, 8]") ", \"a\": " ENTRY("[2]", "[0, 8]") "}", "has the key a twice"},
        {"{\"a\": " ENTRY("[4294967296, 4294967296, 4294967296, 4294967296]", "[0, 8]") "}", "larger than the file"},
        {"{\"a\": " ENTRY("[8, 8, 8, 8, 8, 8, 8, 8]", "[0, 8]") "}", "larger than the file"},
        {"{\"a\": " ENTRY("[1e400]", "[0, 8]") "}", "too large"},
        {"{\"a\": " ENTRY("[\"2\"]", "[0, 8]") "}", "a malformed shape"},
        {"{\"a\": " ENTRY("[-2]", "[0, 8]") "}", "a malformed shape"},
        {"{\"a\": " ENTRY("[1.5]", "[0, 8]") "}", "a malformed shape"},
        {"{\"a\": " ENTRY("[2]", "[null, 8]") "}", "lies outside the file"},
        {"{\"a\": " ENTRY("[2]", "[-1e300, 8]") "}", "lies outside the file"},
        {"{\"a\": " ENTRY("[2]", "[8, 16]") "}", "lies outside the file"},
        {"{\"a\\u0000b\": " ENTRY("[2]", "[0, 8]") "}", "NUL byte"},
        {"[]", "not a JSON object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *complaint = open_header(cases[i].header, strlen(cases[i].header), 8, 0);
        if (cases[i].want)
            expect(complaint, cases[i].want, cases[i].header);
        else
            assert_null(complaint);
    }
    static const char nul[] = "{\"a\": " ENTRY("[2]", "[0, 8]") "}\0\0";
    expect(open_header(nul, sizeof nul, 8, 0), "NUL byte", "a NUL byte in the header");
    char name[200] = "";
    snprintf(name, sizeof name, "{\"%0100d\": " ENTRY("[2]", "[0, 8]") "}", 7);
    expect(open_header(name, strlen(name), 8, 0), "a name that is too long", "a long name");
    uint64_t stated = 100000001;
    write_file(weights_path, &stated, sizeof stated);
    if (truncate(weights_path, 300000000) == 0) {
        Safetensors *file;
        expect(safetensors_open(&file, weights_path), "a header of 100000001 bytes", "a header of 100 MB");
    }
}

/* A model of one layer whose weights are all 0 but one: element `at` of `name` is `value`. */
static const char *load(bool tied, bool with_head, const char *name, size_t at, double value)
{
    ModelConfig c = {
        .layers = 1, .width = 4, .heads = 2, .kv_heads = 2, .head_dim = 2, .ff = 3, .vocab = 5, .tied = tied};
    c.max_seq = 1;
    Kernels kernels = kernels_cpu();
    memory_use(&kernels);
    Params p = params_create(&c, (Placement){0}, &kernels);
    cJSON *header = cJSON_CreateObject();
    double data[400] = {0};
    size_t n = 0;
    for (int i = 0; i <= p.views; i++) {
        bool head = i == p.views;
        if (head && (!tied || !with_head)) break;
        const View *v = head ? params_find(&p, "model.embed_tokens.weight") : &p.view[i];
        const char *called = head ? "lm_head.weight" : v->name;
        if (strcmp(called, name) == 0) data[n + at] = value;
        double shape[] = {v->rows, v->cols}, offsets[] = {8.0 * (double)n, 8.0 * (double)(n + v->size)};
        cJSON *entry = cJSON_AddObjectToObject(header, called);
        cJSON_AddStringToObject(entry, "dtype", "F64");
        cJSON_AddItemToObject(entry, "shape",
                              cJSON_CreateDoubleArray(v->vector ? shape + 1 : shape, v->vector ? 1 : 2));
        cJSON_AddItemToObject(entry, "data_offsets", cJSON_CreateDoubleArray(offsets, 2));
        n += v->size;
    }
    assert_true(n <= sizeof data / sizeof data[0]);
    char *text = cJSON_PrintUnformatted(header);
    uint64_t length = strlen(text);
    FILE *f = fopen(weights_path, "wb");
    assert_non_null(f);
    fwrite(&length, sizeof length, 1, f);
    fwrite(text, 1, length, f);
    fwrite(data, sizeof data[0], n, f);
    fclose(f);
    free(text);
    cJSON_Delete(header);
    const char *complaint = safetensors_load_weights(&p, &c, &kernels, folder);
    params_free(&p);
    return complaint;
}

static void weights(void **state)
{
    (void)state;
    static const char *const q = "model.layers.0.self_attn.q_proj.weight";
    assert_null(load(false, false, q, 3, 0.5));
    assert_null(load(true, false, q, 3, 0.5));
    assert_null(load(true, true, q, 3, 0.5));
    expect(load(true, true, "lm_head.weight", 7, 0.5), "lm_head.weight differs from model.embed_tokens",
           "another head");
    assert_null(load(false, false, "lm_head.weight", 7, 0.5));
    expect(load(false, false, q, 3, NAN), "q_proj.weight holds a weight that is not finite", "NaN");
    expect(load(false, false, "model.norm.weight", 3, -INFINITY), "model.norm.weight holds a weight", "infinity");
    expect(load(true, true, "lm_head.weight", 0, NAN), "lm_head.weight differs", "NaN in the copy of the head");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(refused_keys), cmocka_unit_test(refused_files), cmocka_unit_test(accepted),
    cmocka_unit_test(headers),      cmocka_unit_test(weights),
};

int main(int argc, char **argv)
{
    if (!mkdtemp(folder)) return 1;
    snprintf(config_path, sizeof config_path, "%s/config.json", folder);
    snprintf(weights_path, sizeof weights_path, "%s/model.safetensors", folder);
    int status = testing_run("test_config", tests, sizeof tests / sizeof tests[0], argc, argv);
    remove(config_path);
    remove(weights_path);
    remove(folder);
    return status;
}
