"""The feed as the dashboard receives it: connection, events, and the state they add up to."""
