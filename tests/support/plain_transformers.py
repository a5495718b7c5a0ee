"""What an exported folder does without Assay: run as a program with a folder and a JSON request on standard input."""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Print, for each prompt, the greedy continuation and the log-probabilities of its tokens."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    request = json.load(sys.stdin)
    found = {}
    for folder, asked in request.items():
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
        answers = []
        for text in asked["prompts"]:
            prompt = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
            whole = model.generate(prompt, do_sample=False, max_new_tokens=asked["max_tokens"])[0]
            with torch.no_grad():
                logits = model(whole[None]).logits[0].float()
            start = prompt.shape[1]
            logprobs = logits[start - 1 : -1].log_softmax(-1).gather(-1, whole[start:, None])[:, 0]
            answers.append({"tokens": whole[start:].tolist(), "logprobs": logprobs.tolist()})
        found[folder] = {
            "answers": answers,
            "dtype": str(model.dtype),
            "template": tokenizer.chat_template,
            "assay": "assay" in sys.modules,
        }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
