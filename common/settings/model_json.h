/* A model's constants from its config.json. */
#pragma once

#include "model/model_config.h"

/* Reads DIR/config.json in the form in which `transformers` writes it for Llama and Qwen3. A key is either used, or
 * ignored because it does not change what the model computes, or accepted with one value only. A key that is not
 * known is refused. Returns NULL, or a complaint also if the constants do not make a model. */
const char *model_config_read(ModelConfig *config, const char *dir);
