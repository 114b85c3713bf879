"""From logits to tokens: what shapes a distribution, the draw, and the log probabilities that go with it."""
