//! A table provider over in-memory batches and Parquet files.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::{
    arrow::{array::RecordBatch, datatypes::SchemaRef},
    catalog::{Session, TableProvider},
    common::Result,
    config::TableParquetOptions,
    datasource::{
        TableType,
        listing::PartitionedFile,
        memory::MemorySourceConfig,
        object_store::ObjectStoreUrl,
        physical_plan::{
            FileGroup, FileScanConfigBuilder, ParquetSource,
            parquet::CachedParquetFileReaderFactory,
        },
        source::DataSourceExec,
    },
    logical_expr::Expr,
    physical_plan::{ExecutionPlan, union::UnionExec},
};

use crate::layout;

/// The URL under which a session registers its object store.
pub(super) const OBJECTS_URL: &str = "logs://files";

#[derive(Debug)]
pub(super) struct LogTable {
    pub(super) recent: Vec<RecordBatch>,
    pub(super) files: Vec<PartitionedFile>,
    pub(super) readers: Arc<CachedParquetFileReaderFactory>,
}

impl LogTable {
    fn recent(&self, projection: Option<&Vec<usize>>) -> Result<Arc<dyn ExecutionPlan>> {
        let partitions = std::slice::from_ref(&self.recent);
        let projection = projection.cloned();
        Ok(MemorySourceConfig::try_new_exec(
            partitions,
            layout::schema(),
            projection,
        )?)
    }

    fn files(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = TableParquetOptions {
            global: session.config_options().execution.parquet.clone(),
            ..Default::default()
        };
        let readers = Arc::clone(&self.readers) as _;
        let source = ParquetSource::new(layout::schema())
            .with_table_parquet_options(options)
            .with_parquet_file_reader_factory(readers);
        let groups =
            FileGroup::new(self.files.clone()).split_files(session.config().target_partitions());
        let config =
            FileScanConfigBuilder::new(ObjectStoreUrl::parse(OBJECTS_URL)?, Arc::new(source))
                .with_file_groups(groups)
                .with_projection_indices(projection.cloned())?
                .build();
        Ok(DataSourceExec::from_data_source(config))
    }
}

#[async_trait]
impl TableProvider for LogTable {
    fn schema(&self) -> SchemaRef {
        layout::schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    /// Filters are not applied here: the physical optimizer pushes them into the Parquet scan,
    /// including dynamic ones.
    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if self.files.is_empty() {
            return self.recent(projection);
        }
        let files = self.files(session, projection)?;
        if self.recent.is_empty() {
            return Ok(files);
        }
        UnionExec::try_new(vec![self.recent(projection)?, files])
    }
}
