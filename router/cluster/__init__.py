"""The router's knowledge of Kafka, as far as it decides what can be sent.

`metadata` asks for it in a thread of its own; `unknown_topics` holds messages of topics that Kafka does not
have, and decides when such a topic is given up; `brokers` says where there is room; `trouble` says in one
sentence why nothing can be sent. Read them in this order. Nothing here imports the rest of the router;
outcomes/ and the router itself import it.

    capacity = Capacity(pool, window_messages, window_bytes)
    kafka = Kafka(client, pool, capacity, Metadata(client.fetch_cluster, wake))
    Trouble(client, kafka.metadata).sentence()
"""
