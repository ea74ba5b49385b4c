"""Does the embedded broker behave on the wire as RabbitMQ does?  One set of tests, run against both."""
