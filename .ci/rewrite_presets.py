"""Write the configs of the bundled presets in the newest format.

Run it after a change of the format, and look at the diff: `python .ci/rewrite_presets.py`. Configs
are read like a user's config, so an invalid file stops the script.
"""

import json
from pathlib import Path

from keras_transformer import TransformerConfig
from keras_transformer.checkpoints.presets.preset import CONFIG_FILE, FORMAT_VERSION
from keras_transformer.support.files import write_json

PRESETS = Path(__file__).parents[1] / "presets"


def main() -> None:
    """Rewrite each config, and print how many changed."""
    changed = 0
    paths = sorted(PRESETS.glob(f"*/{CONFIG_FILE}"))
    for path in paths:
        old = json.loads(path.read_text(encoding="utf-8"))
        config = TransformerConfig.from_dict(old["backbone"])
        new = {**old, "format_version": FORMAT_VERSION, "backbone": config.to_dict()}
        if TransformerConfig.from_dict(json.loads(json.dumps(new["backbone"]))) != config:
            raise SystemExit(f"{path} would not load as the same config again.")
        if new != old:
            write_json(path, new)
            changed += 1
    print(f"{changed} of {len(paths)} configs changed.")


if __name__ == "__main__":
    main()
