"""Build an encoder from the layers as an ordinary Keras model, and train it on film reviews.

python examples/custom_model.py --epochs 5
"""

from runs import start

import keras_transformer as kt
from example_data import sst2

import keras
from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 4, "Passes over the training sentences.", lower_bound=1)
flags.DEFINE_integer("train_size", None, "Train on the first sentences only, for a quick look.")
flags.DEFINE_integer("seed", 0, "Seed of weights, dropout and shuffling.")


def build(vocabulary_size: int) -> keras.Model:
    """Build a model from ids `(batch, length)`, where id 0 is padding, to a probability."""
    ids = keras.Input((None,), dtype="int32")
    x = kt.layers.TokenEmbedding(vocabulary_size, 128, scale=True, mask_zero=True)(ids)
    x = keras.layers.Add()([x, kt.layers.SinusoidalPosition()(x)])
    x = keras.layers.Dropout(0.3)(x)
    for _ in range(2):
        x = kt.layers.EncoderBlock(num_heads=4, intermediate_dim=256, dropout=0.3)(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model(ids, keras.layers.Dense(1, activation="sigmoid")(x))


def batches(tokenizer: kt.Tokenizer, texts: list[str], labels: list[int], shuffle: bool = False):
    """Return batches of ids and labels, padded to a few lengths."""
    return kt.data.BucketedDataset(
        {"ids": tokenizer.encode_batch(texts)},
        lambda arrays, masks: (arrays["ids"], arrays["labels"]),
        values={"labels": labels},
        shuffle=shuffle,
        seed=FLAGS.seed,
    )


def main(_):
    kt.tune_process()  # Faster steps on a CPU; models of the library do this automatically.
    keras.utils.set_random_seed(FLAGS.seed)
    texts, labels = (rows[: FLAGS.train_size] for rows in sst2("train"))
    tokenizer = kt.Tokenizer.train(texts, kind="bpe", vocabulary_size=4000, lowercase=True)
    model = build(tokenizer.vocabulary_size)
    model.compile(keras.optimizers.Adam(5e-4), "binary_crossentropy", metrics=["accuracy"])
    model.summary()
    train, dev = batches(tokenizer, texts, labels, shuffle=True), batches(tokenizer, *sst2("dev"))
    model.fit(train, epochs=FLAGS.epochs, validation_data=dev, shuffle=False)
    print(f"\naccuracy on {dev.num_rows} dev sentences: {model.evaluate(dev, verbose=0)[1]:.1%}\n")
    for text in ("a warm and funny film", "dull from start to end", "a total waste of two hours"):
        share = float(model.predict(batches(tokenizer, [text], [0]), verbose=0)[0, 0])
        print(f"  positive with {share:6.1%}  {text}")


if __name__ == "__main__":
    start(main)
