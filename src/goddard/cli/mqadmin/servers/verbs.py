"""Verbs about clusters, brokers, name servers, replicas and storage."""

from typing import Final

from goddard.cli.mqadmin.declare import Verb, flag, needed, switch

VERBS: Final = (
    Verb(
        "dumpCompactionLog",
        "Print the messages of a log file.",
        "servers.storage.dump_compaction_log",
        (flag("f", "file", "File to read."),),
        is_local=True,
    ),
    Verb(
        "updateBrokerConfig",
        "Change a property of brokers.",
        "servers.brokers.update_broker_config",
        (
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("c", "clusterName", "Name of a cluster."),
            flag("a", "updateAllBroker", "With slaves; any value."),
            needed("k", "key", "Name of a property."),
            needed("v", "value", "Its new value."),
        ),
    ),
    Verb(
        "getBrokerConfig",
        "Print the properties of brokers.",
        "servers.brokers.get_broker_config",
        (
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("c", "clusterName", "Name of a cluster."),
        ),
        one_of=("b c",),
    ),
    Verb(
        "brokerStatus",
        "Print the runtime figures of brokers.",
        "servers.brokers.broker_status",
        (
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("c", "clusterName", "Name of a cluster."),
        ),
        one_of=("b c",),
    ),
    Verb(
        "brokerConsumeStats",
        "Print the offsets of all groups of a broker.",
        "servers.brokers.broker_consume_stats",
        (
            needed("b", "brokerAddr", "Address of a broker, or its name."),
            flag("t", "timeoutMillis", "Wait so long for the answer; otherwise 50000."),
            flag("l", "level", "Only queues with at least this lag."),
            flag("o", "order", "true for ordered messages."),
        ),
    ),
    Verb(
        "cleanExpiredCQ",
        "Delete expired files of consume queues.",
        "servers.brokers.clean_expired_consume_queues",
        (
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("c", "cluster", "Name of a cluster."),
        ),
    ),
    Verb(
        "deleteExpiredCommitLog",
        "Delete expired files of the commit log.",
        "servers.brokers.delete_expired_commit_logs",
        (
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("c", "cluster", "Name of a cluster."),
        ),
    ),
    Verb(
        "cleanUnusedTopic",
        "Delete the queues of topics that no longer exist.",
        "servers.brokers.clean_unused_topics",
        (
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("c", "cluster", "Name of a cluster."),
        ),
    ),
    Verb(
        "resetMasterFlushOffset",
        "Tell a slave how far its master has flushed.",
        "servers.replicas.reset_master_flush_offset",
        (
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("o", "offset", "Offset in the queue."),
        ),
    ),
    Verb(
        "getBrokerEpoch",
        "Print the epochs of masters.",
        "servers.replicas.get_broker_epoch",
        (
            flag("c", "clusterName", "Name of a cluster."),
            flag("b", "brokerName", "Name of a broker."),
            flag("i", "interval", "Repeat every so many seconds."),
        ),
        one_of=("c b",),
    ),
    Verb(
        "haStatus",
        "Print the state of replication.",
        "servers.replicas.ha_status",
        (
            flag("c", "clusterName", "Name of a cluster."),
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("i", "interval", "Repeat every so many seconds."),
        ),
    ),
    Verb(
        "getSyncStateSet",
        "Print which replicas are in sync.",
        "servers.replicas.get_sync_state_set",
        (
            needed("a", "controllerAddress", "Address of a controller."),
            flag("c", "clusterName", "Name of a cluster."),
            flag("b", "brokerName", "Name of a broker."),
            flag("i", "interval", "Repeat every so many seconds."),
        ),
    ),
    Verb(
        "getControllerMetaData",
        "Print the controllers and their leader.",
        "servers.replicas.get_controller_metadata",
        (needed("a", "controllerAddress", "Address of a controller."),),
    ),
    Verb(
        "getControllerConfig",
        "Print the properties of controllers.",
        "servers.replicas.get_controller_config",
        (needed("a", "controllerAddress", "Address of a controller."),),
    ),
    Verb(
        "updateControllerConfig",
        "Change a property of controllers.",
        "servers.replicas.update_controller_config",
        (
            needed("a", "controllerAddress", "Address of a controller."),
            needed("k", "key", "Name of a property."),
            needed("v", "value", "Its new value."),
        ),
    ),
    Verb(
        "electMaster",
        "Make a replica the master.",
        "servers.replicas.elect_master",
        (
            needed("a", "controllerAddress", "Address of a controller."),
            needed("b", "brokerId", "Broker id of a replica."),
            needed("bn", "brokerName", "Name of a broker."),
            needed("c", "clusterName", "Name of a cluster."),
        ),
    ),
    Verb(
        "cleanBrokerMetadata",
        "Delete a broker from the controllers.",
        "servers.replicas.clean_broker_metadata",
        (
            needed("a", "controllerAddress", "Address of a controller."),
            flag(
                "b",
                "brokerControllerIdsToClean",
                "Broker ids, separated by semicolons; otherwise all.",
            ),
            needed("bn", "brokerName", "Name of a broker."),
            flag("c", "clusterName", "Name of a cluster."),
            switch("l", "cleanLivingBroker", "Also brokers that are alive."),
        ),
    ),
    Verb(
        "addBroker",
        "Have a container start a broker.",
        "servers.storage.add_broker",
        (
            needed("c", "brokerContainerAddr", "Address of the container."),
            needed("b", "brokerConfigPath", "Configuration file on the machine of the container."),
        ),
    ),
    Verb(
        "removeBroker",
        "Have a container stop a broker.",
        "servers.storage.remove_broker",
        (
            needed("c", "brokerContainerAddr", "Address of the container."),
            needed("b", "brokerIdentity", "CLUSTER:BROKER:ID of the broker."),
        ),
    ),
    Verb(
        "getColdDataFlowCtrInfo",
        "Print the limits for reads of cold data.",
        "servers.storage.get_cold_data_flow",
        (
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("c", "clusterName", "Name of a cluster."),
        ),
    ),
    Verb(
        "updateColdDataFlowCtrGroupConfig",
        "Limit the cold reads of a group.",
        "servers.storage.update_cold_data_flow",
        (
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("c", "clusterName", "Name of a cluster."),
            needed("g", "consumerGroup", "Name of a consumer group."),
            needed("v", "threshold", "Bytes of cold data per period."),
        ),
    ),
    Verb(
        "removeColdDataFlowCtrGroupConfig",
        "Remove the limit of cold reads of a group.",
        "servers.storage.remove_cold_data_flow",
        (
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("c", "clusterName", "Name of a cluster."),
            needed("g", "consumerGroup", "Name of a consumer group."),
        ),
    ),
    Verb(
        "setCommitLogReadAheadMode",
        "Set the read-ahead of the commit log.",
        "servers.storage.set_read_ahead_mode",
        (
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("c", "clusterName", "Name of a cluster."),
            needed("m", "commitLogReadAheadMode", "0 normal, 1 random reads."),
        ),
    ),
    Verb(
        "switchTimerEngine",
        "Choose where a broker keeps timed messages.",
        "servers.storage.switch_timer_engine",
        (
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("c", "clusterName", "Name of a cluster."),
            needed("e", "engineType", "R for RocksDB, F for the file wheel."),
        ),
    ),
    Verb(
        "rocksDBConfigToJson",
        "Write tables from RocksDB as JSON.",
        "servers.storage.rocksdb_config_to_json",
        (
            flag("n", "nameserverAddr", "Addresses of the name servers: HOST:PORT;HOST:PORT."),
            flag("t", "configType", "Table: topics, subscriptionGroups or consumerOffsets."),
            flag("p", "configPath", "Folder of the RocksDB tables, to read them here."),
            flag("e", "exportFile", "File to write, when the tables are read here."),
            flag("j", "jsonEnable", "Whether to print JSON: true or false."),
            flag("c", "cluster", "Name of a cluster."),
            flag("b", "brokerAddr", "Address of a broker, or its name."),
        ),
    ),
    Verb(
        "exportMetadataInRocksDB",
        "Print tables from RocksDB files.",
        "servers.storage.export_rocksdb_metadata",
        (
            needed("p", "path", "Folder of the RocksDB tables."),
            needed("t", "configType", "Table: topics, subscriptionGroups or consumerOffsets."),
            flag("j", "jsonEnable", "Whether to print JSON: true or false."),
        ),
        is_local=True,
    ),
    Verb(
        "checkRocksdbCqWriteProgress",
        "Compare queues in RocksDB with those in files.",
        "servers.storage.check_rocksdb_progress",
        (
            needed("n", "nameserverAddr", "Addresses of the name servers: HOST:PORT;HOST:PORT."),
            needed("c", "cluster", "Name of a cluster."),
            flag("t", "topic", "Name of a topic."),
            flag("cf", "checkFrom", "From this store time on, in milliseconds."),
        ),
    ),
    Verb(
        "exportPopRecord",
        "Have brokers write their records of popped messages.",
        "servers.storage.export_pop_records",
        (
            flag("c", "clusterName", "Name of a cluster."),
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("d", "dryRun", "Only list the brokers."),
        ),
    ),
    Verb(
        "clusterList",
        "Print all clusters and brokers.",
        "servers.clusters.cluster_list",
        (
            switch("m", "moreStats", "With message counts of yesterday and today."),
            flag("i", "interval", "Repeat every so many seconds."),
            flag("c", "clusterName", "Name of a cluster."),
        ),
    ),
    Verb(
        "getNamesrvConfig",
        "Print the properties of the name servers.",
        "servers.name_servers.get_config",
        (),
    ),
    Verb(
        "updateNamesrvConfig",
        "Change a property of the name servers.",
        "servers.name_servers.update_config",
        (needed("k", "key", "Name of a property."), needed("v", "value", "Its new value.")),
    ),
    Verb(
        "updateKvConfig",
        "Set a value in the name servers.",
        "servers.name_servers.update_kv",
        (
            needed("s", "namespace", "Namespace of the key."),
            needed("k", "key", "Name of a property."),
            needed("v", "value", "Its new value."),
        ),
    ),
    Verb(
        "deleteKvConfig",
        "Delete a value from the name servers.",
        "servers.name_servers.delete_kv",
        (
            needed("s", "namespace", "Namespace of the key."),
            needed("k", "key", "Name of a property."),
        ),
    ),
    Verb(
        "wipeWritePerm",
        "Keep producers from a broker.",
        "servers.name_servers.wipe_write_permission",
        (needed("b", "brokerName", "Name of a broker."),),
    ),
    Verb(
        "addWritePerm",
        "Let producers use a broker again.",
        "servers.name_servers.add_write_permission",
        (needed("b", "brokerName", "Name of a broker."),),
    ),
    Verb(
        "exportMetadata",
        "Write topics and groups to a JSON file.",
        "servers.exports.export_metadata",
        (
            flag("c", "clusterName", "Name of a cluster."),
            flag("b", "brokerAddr", "Address of a broker, or its name."),
            flag("f", "filePath", "Folder of the file; otherwise /tmp/rocketmq/export."),
            switch("t", "topic", "Name of a topic."),
            switch("g", "subscriptionGroup", "Only the groups."),
            switch("s", "specialTopic", "With retry and dead-letter topics."),
        ),
    ),
    Verb(
        "exportConfigs",
        "Write the properties of the brokers to a JSON file.",
        "servers.exports.export_configs",
        (
            needed("c", "clusterName", "Name of a cluster."),
            flag("f", "filePath", "Folder of the file; otherwise /tmp/rocketmq/export."),
        ),
    ),
    Verb(
        "exportMetrics",
        "Write figures of the brokers to a JSON file.",
        "servers.exports.export_metrics",
        (
            needed("c", "clusterName", "Name of a cluster."),
            flag("f", "filePath", "Folder of the file; otherwise /tmp/rocketmq/export."),
        ),
    ),
)
