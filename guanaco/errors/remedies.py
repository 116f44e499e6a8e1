"""Names the cause and the cure of each error, by its code, in one sentence each. docs/troubleshooting.md is written from it.

An error's own ``detail`` and ``hint`` say it with the names and figures at hand; these are for who looks a code up.
"""

from __future__ import annotations

from typing import NamedTuple


class Remedy(NamedTuple):
    """The cause of an error, and its cure."""

    cause: str
    cure: str


REMEDIES: dict[str, Remedy] = {
    "account_not_found": Remedy(
        "No account has that name.", "`guanaco keys list` shows the accounts and their keys."
    ),
    "account_role_conflict": Remedy(
        "The account exists already with another role; an account has one role.",
        "Choose another `--name` for the new key.",
    ),
    "already_rated": Remedy(
        "The conversation has a rating.",
        "Within a day, change it with `PUT` or `guanaco conversations rate --change`, or withdraw it with `DELETE` or `guanaco conversations withdraw`.",
    ),
    "ambiguous_alias": Remedy(
        "Several developers use that alias, and you may see the submissions of all of them.",
        "Name the submission by its id.",
    ),
    "ambiguous_user": Remedy(
        "Several backends have a user with that id.", "Name the backend's account too."
    ),
    "artifact_lost": Remedy(
        "The artifact store no longer has what the submission is served from, as after a restore into an empty one.",
        "Wait: the platform makes it again from the Hub. `guanaco status ID` says how far it is.",
    ),
    "artifact_not_found": Remedy(
        "The store has no artifact of that key, or of that beginning of one.",
        "`guanaco-artifacts list` shows the artifacts that are there.",
    ),
    "backup_damaged": Remedy(
        "There is no backup there, or it is not whole, was changed, or was made by a newer version.",
        "Take another backup; `guanaco backup verify` says what is wrong with this one.",
    ),
    "backup_failed": Remedy(
        "A backup could not be made, tried out or restored, for the reason in the message.",
        "Put right what the message names and start the command again; nothing that looks whole was left behind.",
    ),
    "bad_chat_template": Remedy(
        "The chat template in the repo cannot be compiled or rendered, or takes too many steps.",
        "Correct `chat_template` in the repo and push it, or submit with `--formatter` and a preset.",
    ),
    "bad_prompt": Remedy(
        "The prompt of a submission, or one that is to be stored or labelled, makes no prompt.",
        "`guanaco prompts render` shows what it makes; submit or push another one.",
    ),
    "battle_not_found": Remedy(
        "The conversation has no battle of that id.",
        "`GET /conversations/{id}/battles` or `guanaco duels list ID` lists its battles.",
    ),
    "battles_off": Remedy(
        "The conversation's competition allows no battles or is over, or the conversation is part of an experiment or has a chosen model.",
        "Send the message in the usual way; an admin allows battles with the competition's `duels` rule.",
    ),
    "budget_exceeded": Remedy(
        "The developer's GPUs have cost what the monthly budget allows.",
        "Tear submissions down and wait for the next month, or ask the operator for a larger budget.",
    ),
    "canary_worse": Remedy(
        "The new version failed more, was slower or was liked less than the version that serves.",
        "The old version serves on; compare the two in `guanaco logs ID` and submit an improved one.",
    ),
    "cannot_delete": Remedy(
        "Only a submission that failed or was cancelled before it was ever live can be deleted, because others have ratings.",
        "`guanaco teardown ID` stops its model server.",
    ),
    "card_not_found": Remedy(
        "The repo has no README.md, or the submission was not checked yet.",
        "Add a model card to the repo on the Hub; the next submission of it reads it.",
    ),
    "character_not_found": Remedy(
        "There is no such character, or its owner keeps it private.",
        "`guanaco characters list` shows those that you may use.",
    ),
    "prompt_not_found": Remedy(
        "There is no stored prompt of that name, or it has no such version or label.",
        "`guanaco prompts list` lists yours; `guanaco prompts push NAME FILE` stores one.",
    ),
    "cluster_refused": Remedy(
        "The cluster cannot run what was asked of it: there is no room, no such image, or no right to do it.",
        "An operator looks at `guanaco doctor` and at the events of the pod that the message names.",
    ),
    "cluster_unreachable": Remedy(
        "The Kubernetes API did not answer.",
        "It is asked again by itself; if it lasts, an operator looks at the API server and the network policies.",
    ),
    "competition_closed": Remedy(
        "The competition has not begun, is over, or is frozen. One that has not begun cannot be frozen.",
        "`GET /competitions` or `guanaco competitions list` shows when each one runs.",
    ),
    "competition_not_found": Remedy(
        "There is no competition of that id.",
        "`GET /competitions` or `guanaco competitions list` lists them.",
    ),
    "conflict": Remedy(
        "The present state does not allow the request.", "Read the state again, and decide by it."
    ),
    "consent_required": Remedy(
        "The user has not agreed to talk to an experimental model.",
        'Ask the user, then send `"consent": true`, or give `--consent`.',
    ),
    "content_check_failed": Remedy(
        "The model is served, but what it says cannot be used: no token, no text, one token again and again, or not a number.",
        "The message shows the prompt and the reply; look at the dtype, the tokenizer and the saved weights.",
    ),
    "context_too_long": Remedy(
        "`max_input_tokens` and `max_output_tokens` together do not fit into the model's context, or no prompt fits into `max_input_tokens`.",
        "Submit with fewer tokens, or with shorter templates.",
    ),
    "conversation_busy": Remedy(
        "A reply is still being written in the conversation.",
        "Wait for its end, then send the next message.",
    ),
    "conversation_not_found": Remedy(
        "There is no such conversation, or it is another app's or was erased.",
        "Use the `conversation_id` that opening the conversation returned.",
    ),
    "corrupt_config": Remedy(
        "A config, tokenizer or index in the repo cannot be read, contradicts the weights, or takes too long to read.",
        "Save the model again with `save_pretrained(...)` and push it.",
    ),
    "corrupt_weights": Remedy(
        "A weights file is cut short, damaged, or not what its header says.",
        "Upload the file again; `guanaco check REPO` tells whether it can be read.",
    ),
    "data_dir_in_use": Remedy(
        "Another platform runs on the same data folder.",
        "Stop that one first, or choose another `--data-dir`.",
    ),
    "database_unavailable": Remedy(
        "The database did not answer; nothing was changed.",
        "Try again after the time in `Retry-After`; an operator looks at the database.",
    ),
    "disk_full": Remedy(
        "A disk of the platform is full.",
        "An operator makes room: `guanaco-artifacts list` shows what is large and unused.",
    ),
    "engine_missing": Remedy(
        "The environment with vLLM is not there.",
        "An operator runs `guanaco doctor`, which names the command that makes it.",
    ),
    "experiment_conflict": Remedy(
        "The experiment's name is taken, it has run already, or another one has its users.",
        "Choose another name or share, or stop the other experiment.",
    ),
    "experiment_not_found": Remedy(
        "There is no experiment of that name.", "`guanaco experiments list` shows them."
    ),
    "export_unsupported": Remedy(
        "The server lacks the library that writes that format.",
        "Take `jsonl` or `csv`, or ask the operator to install the library that the message names.",
    ),
    "external_id_taken": Remedy(
        "Another user's conversation has that `external_id`.",
        "Choose ids that are unique in your app.",
    ),
    "feedback_not_found": Remedy(
        "There is no such rating, or it is of another developer's submission.",
        "`guanaco feedback ID` lists the ratings of a submission.",
    ),
    "flag_not_found": Remedy(
        "No rule has left that rating or duel out of the count.",
        "`GET /votes/flags` or `guanaco votes flags` lists what was left out.",
    ),
    "forbidden": Remedy(
        "The key is valid, but its role does not allow this.",
        "Use a key of the role that the message names; `guanaco whoami` shows yours.",
    ),
    "guanaco_error": Remedy(
        "An error of a newer server, which this client does not know by its code.",
        "Read the message; upgrading the client teaches it the code.",
    ),
    "header_too_large": Remedy(
        "The request's header is larger than 64 KiB.",
        "Send fewer or shorter header lines; long texts belong in the body.",
    ),
    "hub_token_gone": Remedy(
        "The repo opened for an earlier run and does not open now.",
        "If it is private or gated, redeploy with `--hub-token`; if it was deleted or renamed, submit the new one.",
    ),
    "hub_token_refused": Remedy(
        "The Hub refuses the token that was given.",
        "Give a token that is valid and may read the repo.",
    ),
    "hub_unreachable": Remedy(
        "The Hugging Face Hub did not answer.",
        "It is asked again by itself; if the submission failed, `guanaco redeploy ID` tries again.",
    ),
    "idempotency_conflict": Remedy(
        "The `Idempotency-Key` was used before with another request.",
        "Use a new key for each new request.",
    ),
    "illegal_transition": Remedy(
        "The submission's status does not allow this step.", "`guanaco status ID` shows the status."
    ),
    "internal_fault": Remedy(
        "Something unforeseen went wrong on the platform; the log has it under the incident number.",
        "Tell the operator the incident number.",
    ),
    "invalid_card": Remedy(
        "The file is no Character Card, or one that cannot be stored.",
        "The message names the field; docs/characters.md lists what is read.",
    ),
    "invalid_formatter": Remedy(
        "The prompt's templates have a placeholder or form that may not be filled.",
        "The message names the place; docs/prompts.md lists the placeholders.",
    ),
    "invalid_input": Remedy(
        "A field is missing, unknown or out of range.",
        "The message names the field and what it may be.",
    ),
    "invalid_settings": Remedy(
        "A setting is unknown or cannot be used, so the platform does not start.",
        "The message names it and the nearest known one; `guanaco settings` prints those in effect.",
    ),
    "key_not_found": Remedy("There is no key of that id.", "`guanaco keys list` shows the ids."),
    "last_admin_key": Remedy(
        "It is the only admin key that works, so revoking it would lock everybody out.",
        "Make another admin key first.",
    ),
    "library_missing": Remedy(
        "An optional package is not installed.", "Install it with the command in the message."
    ),
    "malformed_request": Remedy(
        "The connection carried no HTTP request.",
        "Look at the client, or at the proxy before the platform.",
    ),
    "message_not_found": Remedy(
        "The conversation has no such message, or it was deleted or replaced.",
        "Read the conversation again for its present messages.",
    ),
    "message_too_long": Remedy(
        "The message, with the persona, does not fit into the model's `max_input_tokens`.",
        "Shorten the message.",
    ),
    "method_not_allowed": Remedy(
        "The path is known, but not with this HTTP method.",
        "Use one of the methods in the header `Allow`.",
    ),
    "missing_file": Remedy(
        "The repo lacks a file that every model needs.", "Push the file that the message names."
    ),
    "model_not_live": Remedy(
        "The submission that was chosen takes no new conversations.",
        "Choose one that is deployed, or leave `model` out.",
    ),
    "model_refused": Remedy(
        "The model server works and refuses this request.",
        "Send a shorter message or other parameters.",
    ),
    "model_server_died": Remedy(
        "The model server ended by itself while it started or was tried.",
        "`guanaco logs ID` has its last lines; most often an architecture, a dtype or a length that vLLM refuses.",
    ),
    "model_server_lost": Remedy(
        "The model server went away while it was checked, which says nothing of the model.",
        "Nothing: the check is made again when the server is back.",
    ),
    "model_server_too_slow": Remedy(
        "The model server was not ready within `ready_timeout_s`.",
        "`guanaco logs ID` shows how far it came; a smaller model loads faster.",
    ),
    "model_timed_out": Remedy(
        "The model server did not answer in time.",
        "Send the message again, or regenerate the reply.",
    ),
    "model_too_large": Remedy(
        "The weights are more than the platform takes.", "Submit a smaller or quantized model."
    ),
    "model_unavailable": Remedy(
        "The submission's model server does not answer now.",
        "It is restarted by itself: try again in a minute.",
    ),
    "model_waking": Remedy(
        "The submission slept, and its model server is being started.",
        "Send the message again after the time in `Retry-After`.",
    ),
    "newer_version_needed": Remedy(
        "A newer version has stored something that this server does not understand, during an upgrade.",
        "Try again when every process runs the newer version.",
    ),
    "no_model_available": Remedy(
        "No submission takes conversations now.",
        "Try again when one is deployed; `guanaco submissions` shows them.",
    ),
    "no_recipe": Remedy(
        "No GPUs of the platform can serve the model as it is wanted.",
        "`guanaco plan REPO` shows what it would need; quantize it, or ask the operator for other GPUs.",
    ),
    "no_such_gpu": Remedy(
        "The platform has no GPU of that type.", "Name one of those in the message."
    ),
    "not_found": Remedy("It does not exist, or you may not see it.", "Check the id and the path."),
    "not_rated": Remedy(
        "The conversation has no rating.", "`POST` or `guanaco conversations rate` gives it one."
    ),
    "nothing_to_continue": Remedy(
        "The conversation's last message is no reply of the model.",
        "Send a message first, or regenerate the reply.",
    ),
    "nothing_to_rate": Remedy(
        "The model has not replied in the conversation.", "Rate it after the first reply."
    ),
    "nothing_to_regenerate": Remedy(
        "There is no message of the user to answer.", "Send a message first."
    ),
    "nothing_to_roll_back": Remedy(
        "No redeploy has replaced a version of the submission.",
        "`guanaco redeploy ID` makes a new version.",
    ),
    "overloaded": Remedy(
        "Every model server of the submission, or its template, has as much to do as it can.",
        "Try again after the time in `Retry-After`; an operator may raise `max_replicas`.",
    ),
    "payload_too_large": Remedy(
        "The request's body is over the limit of its path.", "Send less in one request."
    ),
    "persona_too_long": Remedy(
        "The bot's persona leaves no room for a message in any model.", "Shorten the bot's memory."
    ),
    "pickle_weights": Remedy(
        "The repo has its weights as pickles only, which can run code.",
        "Push them as safetensors: `save_pretrained(..., safe_serialization=True)`.",
    ),
    "prompt_failed": Remedy(
        "The submission's own prompt or tokenizer cannot render this conversation.",
        "Its developer submits it with another prompt; `guanaco prompts render` shows the fault.",
    ),
    "quantization_too_lossy": Remedy(
        "Quantized, the model predicts a fixed text much worse.",
        "Submit it without `--quantization`.",
    ),
    "quantization_unsupported": Remedy(
        "The model or the hardware cannot do that quantization.",
        "docs/quantization.md lists what needs which hardware.",
    ),
    "quota_exceeded": Remedy(
        "The developer has as many submissions or bytes as the quota allows.",
        "`guanaco quota` shows the limits; `guanaco teardown ID` makes room.",
    ),
    "rating_settled": Remedy(
        "The rating is too old, was changed too often, or its competition is frozen.",
        "It stays as it is.",
    ),
    "redeploy_in_progress": Remedy(
        "The last redeploy of the submission has not ended.",
        "`guanaco logs ID` follows it, and `guanaco cancel ID` ends it.",
    ),
    "remote_code": Remedy(
        "The repo needs code of its own to be loaded, which never runs here.",
        "Push the model in an architecture that vLLM has.",
    ),
    "repo_gated": Remedy(
        "The repo is gated.", "Ask for access on the Hub, then give your token with `--hub-token`."
    ),
    "repo_not_found": Remedy(
        "There is no such model repo on the Hub, or it is private.",
        "Check the spelling; a private repo is opened with `--hub-token`.",
    ),
    "report_not_found": Remedy(
        "The submission has no stress report yet.", "`guanaco status ID` shows its stage."
    ),
    "request_in_progress": Remedy(
        "The first request with this `Idempotency-Key` is still being answered.",
        "Send it again in a few seconds: then you get its answer.",
    ),
    "request_timed_out": Remedy(
        "The request's header or body did not come in time.",
        "Send it again over a better connection.",
    ),
    "revision_not_found": Remedy(
        "The repo has no such branch, tag or commit.",
        "Name one that it has; left out, it is `main`.",
    ),
    "reward_in_use": Remedy(
        "Live submissions are served with this reward model.", "Tear those down first."
    ),
    "reward_unusable": Remedy(
        "The submission that was named cannot be a reward model for this developer.",
        "Name a deployed reward model of your own, or leave it out.",
    ),
    "schema_not_ready": Remedy(
        "The database has another revision than this version needs.",
        "`guanaco migrate` brings it there.",
    ),
    "season_not_found": Remedy(
        "The competition has no final ranking yet.", "`guanaco competitions freeze ID` makes it."
    ),
    "serializer_died": Remedy(
        "The job that serializes weights ended before its work was whole.",
        "`guanaco redeploy ID` tries again; the operator looks at its log and its memory limit.",
    ),
    "server_unreachable": Remedy(
        "No Guanaco answers at that URL.",
        "`guanaco up` starts one; `guanaco login --url URL` names another.",
    ),
    "stage_fault": Remedy(
        "A stage met an unforeseen error; the log has it under the incident number.",
        "Tell the operator the incident number; `guanaco redeploy ID` tries again.",
    ),
    "storage_quota_exceeded": Remedy(
        "The developer's artifacts would take more bytes than the quota allows.",
        "`guanaco teardown ID` makes room; then redeploy.",
    ),
    "store_unreachable": Remedy(
        "The artifact store did not answer, or refuses the platform.",
        "It is asked again by itself; an operator looks at `guanaco doctor`.",
    ),
    "stress_check_failed": Remedy(
        "The model server answers too slowly, or fails too often, under load.",
        "`guanaco stress ID` shows the figures; a smaller model or fewer tokens answer faster.",
    ),
    "submission_failure": Remedy(
        "A stage of the pipeline failed.", "`guanaco status ID` says which and why."
    ),
    "submission_not_found": Remedy(
        "There is no such submission, or it is another developer's.",
        "`guanaco submissions` lists yours.",
    ),
    "sweep_not_found": Remedy("You have no sweep of that id.", "`guanaco sweep list` lists yours."),
    "too_many_attempts": Remedy(
        "The same was tried too often in a short time.", "Wait as long as the message says."
    ),
    "too_many_connections": Remedy(
        "There are too many connections to the server, or from your address.",
        "Close those that you do not need; keep connections open and use them again.",
    ),
    "too_many_ratings": Remedy(
        "One user gave more ratings within a minute than a person does.",
        "Send the rating again in a minute.",
    ),
    "too_many_submissions": Remedy(
        "The developer has submitted or redeployed as often within an hour as the quota allows.",
        "Wait as long as the message says; a sweep counts once.",
    ),
    "unauthenticated": Remedy(
        "The request has no key, or one that is wrong or was revoked.",
        "Send `Authorization: Bearer KEY`; `guanaco login` stores a key.",
    ),
    "unavailable": Remedy(
        "The platform cannot answer for the moment.", "Try again after the time in `Retry-After`."
    ),
    "unsupported_adapter": Remedy(
        "The LoRA adapter uses something that can neither be merged nor added.",
        "Merge it yourself and push the whole model.",
    ),
    "unsupported_architecture": Remedy(
        "vLLM has no class for the model's architecture.",
        "Submit a model of an architecture that vLLM supports.",
    ),
    "unsupported_tokenizer": Remedy(
        "The tokenizer cannot be served: it takes too much work or memory, or is of an unknown kind.",
        "Push the tokenizer that the model was trained with, as its class saves it.",
    ),
    "webhook_not_found": Remedy("You have set no webhook.", "`guanaco webhook set URL` sets one."),
    "worker_given_up": Remedy(
        "The worker was silent for too long, and others have taken over its work.",
        "It may be started again; look for what held it up: a stalled disk, a suspended machine.",
    ),
}
