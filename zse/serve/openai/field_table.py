"""What is known of fields that no struct has: refused, or without effect.

A field of a request struct is honoured. One that stands here changes the answer where somebody else
serves it, so it is refused by name with every value but those that ask for nothing; or it changes
no answer, and is reported back. A field that nobody knows is reported back, too. The page
``docs/reference/api.md`` is made of this table and of the structs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zse.serve.http.fields import Refused, WithoutEffect

_NEVER_CUT = "A prompt that is too long is refused, never cut."
_ONE_MODEL = "Name the adapter as 'model': zse serve --lora gives it a name."
_SAMPLERS = "Use 'temperature', 'top_p', 'top_k' and 'min_p'."
_CODE = "Requests carry no code."
_IDS_OF_TOKENS = "Ask /tokenize."
_STATES = "Use /v1/embeddings."
_OWN_TEMPLATE = "The model's own template is used."
_TEXT_ONLY = "Only text is generated."

SHARED_REFUSED: Refused = {
    # Forms
    "grammar_lazy": ((False,), ""),
    "grammar_triggers": (([],), ""),
    # Prompts
    "chat_template": ((), _OWN_TEMPLATE),
    "truncation": (("disabled",), _NEVER_CUT),
    "truncate_prompt_tokens": ((), _NEVER_CUT),
    "truncate": ((), _NEVER_CUT),
    "input_ids": ((), "Send token ids as the 'prompt' of /v1/completions."),
    "prompt_embeds": ((), "Send text or token ids."),
    "session_params": ((), "Equal beginnings of prompts are found without it."),
    "mm_processor_kwargs": (({},), _TEXT_ONLY),
    "media_io_kwargs": (({},), _TEXT_ONLY),
    "image_data": (([],), "Only text is read."),
    # Sampling
    "use_beam_search": ((False,), "Use 'n', or 'best_of' of /v1/completions."),
    "length_penalty": ((1, 1.0), "There is no beam search."),
    "early_stopping": ((False,), "There is no beam search."),
    "do_sample": ((True,), "Use 'temperature': 0 is greedy."),
    "typical_p": ((1, 1.0), _SAMPLERS),
    "tfs_z": ((1, 1.0), _SAMPLERS),
    "top_n_sigma": ((-1, -1.0, 0, 0.0), _SAMPLERS),
    "mirostat": ((0,), _SAMPLERS),
    "dynatemp_range": ((0, 0.0), _SAMPLERS),
    "xtc_probability": ((0, 0.0), _SAMPLERS),
    "dry_multiplier": ((0, 0.0), "Use 'repetition_penalty'."),
    "samplers": ((), _SAMPLERS),
    "repeat_penalty": ((1, 1.0), "Use 'repetition_penalty'."),
    "repetition_detection": ((), "Use 'repetition_penalty'."),
    "penalize_nl": ((False,), "Use 'logit_bias'."),
    "top_a": ((0, 0.0), _SAMPLERS),
    "smoothing_factor": ((0, 0.0), _SAMPLERS),
    "guidance_scale": ((1, 1.0), "One prompt is answered."),
    "negative_prompt": (("",), "One prompt is answered."),
    "random_seed": ((), "Use 'seed'."),
    "n_indent": ((0,), "Use 'stop'."),
    "watermark": ((False,), ""),
    "logits_processors": (([],), _CODE),
    "custom_logit_processor": ((), _CODE),
    "custom_params": (({},), _CODE),
    "vllm_xargs": (({},), _CODE),
    "n_predict": ((), "Use 'max_tokens'."),
    "max_new_tokens": ((), "Use 'max_tokens'."),
    "t_max_predict_ms": ((0,), "Use 'max_tokens', or close the connection."),
    "stop_regex": (([],), "Use 'stop'."),
    # Answers
    "skip_special_tokens": ((True,), "Special tokens are never part of a text."),
    "spaces_between_special_tokens": ((True,), "Special tokens are never part of a text."),
    "include_stop_str_in_output": ((False,), "An answer ends before its stop text."),
    "no_stop_trim": ((False,), "An answer ends before its stop text."),
    "return_tokens_as_token_ids": ((False,), _IDS_OF_TOKENS),
    "return_token_ids": ((False,), _IDS_OF_TOKENS),
    "return_tokens": ((False,), _IDS_OF_TOKENS),
    "return_hidden_states": ((False,), _STATES),
    "logprob_token_ids": (([],), "Use 'logprobs' or 'top_logprobs'."),
    "n_probs": ((0,), "Use 'logprobs' or 'top_logprobs'."),
    "post_sampling_probs": ((False,), "Use 'logprobs' or 'top_logprobs'."),
    "timings_per_token": ((False,), "The header 'server-timing' and /metrics have times."),
    "response_fields": (([],), ""),
    "return_progress": ((False,), "Use 'stream_options'."),
    "details": ((False,), "Use 'logprobs'."),
    "decoder_input_details": ((False,), "Use 'prompt_logprobs'."),
    # Other weights, other machines
    "lora_path": ((), _ONE_MODEL),
    "lora": (([],), _ONE_MODEL),
    "lora_request": ((), _ONE_MODEL),
    "adapter_id": ((), _ONE_MODEL),
    "kv_transfer_params": (({},), "Prompts are computed where they are answered."),
}
"""What no route does that generates text."""

CHAT_REFUSED: Refused = {
    **SHARED_REFUSED,
    "functions": (([],), "Use 'tools'."),
    "function_call": (("none", "auto"), "Use 'tool_choice'."),
    "messages[].audio": ((), "Only text is read: send what was said as 'content'."),
    "messages[].function_call": ((), "Use 'tool_calls'."),
    "messages[].prefix": ((False,), "Use 'continue_final_message'."),
    "messages[].partial": ((False,), "Use 'continue_final_message'."),
    "audio": ((), _TEXT_ONLY),
    "modalities": ((["text"],), "Only text is generated: send ['text']."),
    "web_search_options": ((), "Search yourself, or offer a tool that does."),
    "suffix": (("",), "Use /v1/completions."),
    "best_of": ((1,), "Use 'n' and choose, or /v1/completions."),
    "prompt": ((), "Use /v1/completions."),
    "tool_prompt": ((), _OWN_TEMPLATE),
    "guideline": ((), "Write it into a message."),
    "thinking_token_budget": ((), "Use 'max_completion_tokens'."),
    "enable_thinking": ((), "Send it in 'chat_template_kwargs'."),
    "thinking": ((), "Use 'reasoning_effort', or 'chat_template_kwargs'."),
    "safe_prompt": ((False,), "Write it into a message."),
    "add_special_tokens": ((False,), "The model's template writes its special tokens itself."),
}
COMPLETION_REFUSED: Refused = {
    **SHARED_REFUSED,
    "documents": (([],), "Use /v1/chat/completions."),
    "tools": (([],), "Use /v1/chat/completions."),
    "messages": ((), "Use /v1/chat/completions."),
    "return_full_text": ((False,), "Use 'echo'."),
    "input_extra": (([],), "Write it into the prompt."),
    "input_prefix": (("",), "Use 'prompt'."),
    "input_suffix": (("",), "Use 'suffix'."),
    "top_logprobs": ((), "Use 'logprobs', a number."),
    "max_completion_tokens": ((), "Use 'max_tokens'."),
}

WITHOUT_EFFECT: WithoutEffect = {
    # OpenAI's services
    "stream_options.include_obfuscation": (False,),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "verbosity": ("medium",),
    "prompt_cache_retention": ("in_memory", "in-memory"),
    "prediction": (),
    "background": (False,),
    # Other servers' knobs of speed, placement and logs
    "request_id": (),
    "rid": (),
    "cache_prompt": (True, False),
    "id_slot": (-1,),
    "n_keep": (0,),
    "n_discard": (0,),
    "data_parallel_rank": (),
    "guided_decoding_backend": (),
    "stream_interval": (),
    "include_reasoning": (True,),
    "separate_reasoning": (True,),
    "stream_reasoning": (True,),
    "min_keep": (0,),
    # Numbers of samplers that are off: what turns them on is refused
    "mirostat_tau": (),
    "mirostat_eta": (),
    "dynatemp_exponent": (),
    "xtc_threshold": (),
    "dry_base": (),
    "dry_allowed_length": (),
    "dry_penalty_last_n": (),
    "dry_sequence_breakers": (),
    "repeat_last_n": (),
    "truncation_side": (),
}
"""Known fields that change no answer. Values that need not be reported either stand with them."""
