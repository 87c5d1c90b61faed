"""What is learned: losses and samplers (pure functions), embeddings, encoders, item weights."""
