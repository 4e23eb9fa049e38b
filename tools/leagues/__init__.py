"""The parts of tools/league: bruce and its peers in the same troubles, and a count of what Kafka has.

league          every case for every peer, on one cluster of three real brokers; the tables
cases           the troubles, each a script of a dozen lines
match           one peer in one case: sender, Kafka, resources, and the count at the end
programs        bruce, rsyslog, syslog-ng, the OpenTelemetry Collector
peer            a program that takes messages for Kafka: started, killed, stopped, asked for its counters
sender          sends each message until the peer has taken it
arrivals        reads the topic, and judges it by tools/verify_judge
configurations/ the peers' settings, as their own documents recommend them where nothing may be lost
"""
