#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The model of a GGUF as float32 in a folder that the builder of ONNX Runtime GenAI reads:
onnxruntime_floats.py GGUF FOLDER"""
import os
import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

folder, name = os.path.split(os.path.abspath(sys.argv[1]))
AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(sys.argv[2])
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype="float32")
# The weights are floats by now; what still says otherwise would stop them from being saved.
model.hf_quantizer = None
model.is_quantized = False
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
model.save_pretrained(sys.argv[2])
