"""Settings: what config classes say about themselves (`schema`), where values come from (`sources`), and how both
become a config (`loader`)."""
