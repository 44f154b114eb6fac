"""The parts of a job, tried before anything starts: model, loss, samples and collated batches."""
