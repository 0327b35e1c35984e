"""Language codes of mBART: tokens that are added to a text and name its language."""

import tokenizers

from keras_transformer.support.checking import describe
from keras_transformer.tokenizers.training import set_template

_OF_25 = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT "
    "lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)
_OF_50 = (
    f"{_OF_25} af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL "
    "ps_AF pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)
CODES_25, CODES_50 = tuple(_OF_25.split()), tuple(_OF_50.split())
# Templates of texts and of pairs, with the code in front (mBART-50) or at the end (mBART).
_FIRST = ("{start} $A {end}", "{start} $A $B {end}")
_LAST = ("$A {end} {start}", "$A $B {end} {start}")


def set_language(backend: tokenizers.Tokenizer, code: str, end: str, first: bool) -> None:
    """Make the backend add a language code and the end token; with `first` the code is in front."""
    set_template(backend, _FIRST if first else _LAST, code, end)


def set_source_language(tokenizer, code: str) -> None:
    """Change the language that mBART's tokenizer adds to source texts.

    The target language is the token that targets start with: `Rules(forced_prefix=[id])` in
    `generate`, or `forced_bos_token_id` in the backbone's `generation_config`, which `fit` uses
    too. The first mBART has no such token; there it is the `start_id` of `Seq2SeqLM`.

    Args:
        tokenizer: `Tokenizer` of an mBART, which already adds a code to texts.
        code: str, such as `"de_DE"`.

    Raises:
        ValueError: if the code is not in the vocabulary, or if it is not an mBART tokenizer.

    Example:
    ```python
    import keras_transformer as kt
    from keras_transformer.tokenizers import set_source_language

    words = ["en_XX", "de_DE"]
    tokenizer = kt.Tokenizer.train(["a dog", "ein hund"], vocabulary_size=300, special_tokens=words)
    try:
        set_source_language(tokenizer, "de_DE")
    except ValueError as error:
        assert "adds no language to a text" in str(error)
    ```

    Source: Liu et al. 2020, "Multilingual Denoising Pre-training", section 2; Tang et al. 2020.
    """
    around, end = tokenizer.encode(""), tokenizer.end_id
    here = [tokenizer.id_to_token(index) for index in around if index != end]
    if len(around) != 2 or len(here) != 1 or here[0] not in CODES_50:
        raise ValueError(
            "This tokenizer adds no language to a text: it does not belong to an mBART."
        )
    if not isinstance(code, str) or tokenizer.token_to_id(code) is None:
        raise ValueError(
            f"The vocabulary has no language {describe(code)}. Examples of codes: 'en_XX', 'de_DE'."
        )
    end = tokenizer.id_to_token(end)
    set_language(tokenizer._backend, code, end, first=around[0] != tokenizer.end_id)
