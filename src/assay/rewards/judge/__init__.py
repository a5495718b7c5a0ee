"""A reward whose judge is a language model: template, call, reading of the verdict."""
