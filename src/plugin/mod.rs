//! The PJRT entry points, by PJRT object. Thin: check arguments, call below, translate errors.

mod buffer;
mod client;
mod device;
mod entry;
mod error;
mod event;
mod executable;
mod exports;
mod extensions;
mod handle;
mod snapshot;
mod topology;
mod transfer;
mod values;

use crate::abi::sys;

/// The table of entry points that a framework gets. Every slot is set: what is not served says so in words.
struct Api(sys::PJRT_Api);

// SAFETY: constants and constant function pointers.
unsafe impl Sync for Api {}

static API: Api = Api(sys::PJRT_Api {
    struct_size: size_of::<sys::PJRT_Api>(),
    extension_start: extensions::first(),
    pjrt_api_version: sys::PJRT_Api_Version {
        struct_size: size_of::<sys::PJRT_Api_Version>(),
        extension_start: std::ptr::null_mut(),
        major_version: sys::PJRT_API_MAJOR as i32,
        minor_version: sys::PJRT_API_MINOR as i32,
    },
    PJRT_Error_Destroy: Some(error::error_destroy),
    PJRT_Error_Message: Some(error::error_message),
    PJRT_Error_GetCode: Some(error::PJRT_Error_GetCode),
    PJRT_Plugin_Initialize: Some(client::PJRT_Plugin_Initialize),
    PJRT_Plugin_Attributes: Some(client::PJRT_Plugin_Attributes),
    PJRT_Event_Destroy: Some(event::PJRT_Event_Destroy),
    PJRT_Event_IsReady: Some(event::PJRT_Event_IsReady),
    PJRT_Event_Error: Some(event::PJRT_Event_Error),
    PJRT_Event_Await: Some(event::PJRT_Event_Await),
    PJRT_Event_OnReady: Some(event::PJRT_Event_OnReady),
    PJRT_Client_Create: Some(client::PJRT_Client_Create),
    PJRT_Client_Destroy: Some(client::PJRT_Client_Destroy),
    PJRT_Client_PlatformName: Some(client::PJRT_Client_PlatformName),
    PJRT_Client_ProcessIndex: Some(client::PJRT_Client_ProcessIndex),
    PJRT_Client_PlatformVersion: Some(client::PJRT_Client_PlatformVersion),
    PJRT_Client_Devices: Some(client::PJRT_Client_Devices),
    PJRT_Client_AddressableDevices: Some(client::PJRT_Client_AddressableDevices),
    PJRT_Client_LookupDevice: Some(client::PJRT_Client_LookupDevice),
    PJRT_Client_LookupAddressableDevice: Some(client::PJRT_Client_LookupAddressableDevice),
    PJRT_Client_AddressableMemories: Some(client::PJRT_Client_AddressableMemories),
    PJRT_Client_Compile: Some(client::PJRT_Client_Compile),
    PJRT_Client_DefaultDeviceAssignment: Some(client::PJRT_Client_DefaultDeviceAssignment),
    PJRT_Client_BufferFromHostBuffer: Some(client::PJRT_Client_BufferFromHostBuffer),
    PJRT_DeviceDescription_Id: Some(device::PJRT_DeviceDescription_Id),
    PJRT_DeviceDescription_ProcessIndex: Some(device::PJRT_DeviceDescription_ProcessIndex),
    PJRT_DeviceDescription_Attributes: Some(device::PJRT_DeviceDescription_Attributes),
    PJRT_DeviceDescription_Kind: Some(device::PJRT_DeviceDescription_Kind),
    PJRT_DeviceDescription_DebugString: Some(device::PJRT_DeviceDescription_DebugString),
    PJRT_DeviceDescription_ToString: Some(device::PJRT_DeviceDescription_ToString),
    PJRT_Device_GetDescription: Some(device::PJRT_Device_GetDescription),
    PJRT_Device_IsAddressable: Some(device::PJRT_Device_IsAddressable),
    PJRT_Device_LocalHardwareId: Some(device::PJRT_Device_LocalHardwareId),
    PJRT_Device_AddressableMemories: Some(device::PJRT_Device_AddressableMemories),
    PJRT_Device_DefaultMemory: Some(device::PJRT_Device_DefaultMemory),
    PJRT_Device_MemoryStats: Some(device::PJRT_Device_MemoryStats),
    PJRT_Memory_Id: Some(device::PJRT_Memory_Id),
    PJRT_Memory_Kind: Some(device::PJRT_Memory_Kind),
    PJRT_Memory_DebugString: Some(device::PJRT_Memory_DebugString),
    PJRT_Memory_ToString: Some(device::PJRT_Memory_ToString),
    PJRT_Memory_AddressableByDevices: Some(device::PJRT_Memory_AddressableByDevices),
    PJRT_Executable_Destroy: Some(executable::PJRT_Executable_Destroy),
    PJRT_Executable_Name: Some(executable::PJRT_Executable_Name),
    PJRT_Executable_NumReplicas: Some(executable::PJRT_Executable_NumReplicas),
    PJRT_Executable_NumPartitions: Some(executable::PJRT_Executable_NumPartitions),
    PJRT_Executable_NumOutputs: Some(executable::PJRT_Executable_NumOutputs),
    PJRT_Executable_SizeOfGeneratedCodeInBytes: Some(executable::PJRT_Executable_SizeOfGeneratedCodeInBytes),
    PJRT_Executable_GetCostAnalysis: Some(executable::PJRT_Executable_GetCostAnalysis),
    PJRT_Executable_OutputMemoryKinds: Some(executable::PJRT_Executable_OutputMemoryKinds),
    PJRT_Executable_OptimizedProgram: Some(executable::PJRT_Executable_OptimizedProgram),
    PJRT_Executable_Serialize: Some(executable::PJRT_Executable_Serialize),
    PJRT_LoadedExecutable_Destroy: Some(executable::PJRT_LoadedExecutable_Destroy),
    PJRT_LoadedExecutable_GetExecutable: Some(executable::PJRT_LoadedExecutable_GetExecutable),
    PJRT_LoadedExecutable_AddressableDevices: Some(executable::PJRT_LoadedExecutable_AddressableDevices),
    PJRT_LoadedExecutable_Delete: Some(executable::PJRT_LoadedExecutable_Delete),
    PJRT_LoadedExecutable_IsDeleted: Some(executable::PJRT_LoadedExecutable_IsDeleted),
    PJRT_LoadedExecutable_Execute: Some(executable::PJRT_LoadedExecutable_Execute),
    PJRT_Executable_DeserializeAndLoad: Some(client::PJRT_Executable_DeserializeAndLoad),
    PJRT_LoadedExecutable_Fingerprint: Some(executable::PJRT_LoadedExecutable_Fingerprint),
    PJRT_Buffer_Destroy: Some(buffer::PJRT_Buffer_Destroy),
    PJRT_Buffer_ElementType: Some(buffer::PJRT_Buffer_ElementType),
    PJRT_Buffer_Dimensions: Some(buffer::PJRT_Buffer_Dimensions),
    PJRT_Buffer_UnpaddedDimensions: Some(buffer::PJRT_Buffer_UnpaddedDimensions),
    PJRT_Buffer_DynamicDimensionIndices: Some(buffer::PJRT_Buffer_DynamicDimensionIndices),
    PJRT_Buffer_GetMemoryLayout: Some(buffer::PJRT_Buffer_GetMemoryLayout),
    PJRT_Buffer_OnDeviceSizeInBytes: Some(buffer::PJRT_Buffer_OnDeviceSizeInBytes),
    PJRT_Buffer_Device: Some(buffer::PJRT_Buffer_Device),
    PJRT_Buffer_Memory: Some(buffer::PJRT_Buffer_Memory),
    PJRT_Buffer_Delete: Some(buffer::PJRT_Buffer_Delete),
    PJRT_Buffer_IsDeleted: Some(buffer::PJRT_Buffer_IsDeleted),
    PJRT_Buffer_CopyToDevice: Some(buffer::PJRT_Buffer_CopyToDevice),
    PJRT_Buffer_ToHostBuffer: Some(buffer::PJRT_Buffer_ToHostBuffer),
    PJRT_Buffer_IsOnCpu: Some(buffer::PJRT_Buffer_IsOnCpu),
    PJRT_Buffer_ReadyEvent: Some(buffer::PJRT_Buffer_ReadyEvent),
    PJRT_Buffer_UnsafePointer: Some(buffer::PJRT_Buffer_UnsafePointer),
    PJRT_Buffer_IncreaseExternalReferenceCount: Some(buffer::PJRT_Buffer_IncreaseExternalReferenceCount),
    PJRT_Buffer_DecreaseExternalReferenceCount: Some(buffer::PJRT_Buffer_DecreaseExternalReferenceCount),
    PJRT_Buffer_OpaqueDeviceMemoryDataPointer: Some(buffer::PJRT_Buffer_OpaqueDeviceMemoryDataPointer),
    PJRT_CopyToDeviceStream_Destroy: Some(buffer::PJRT_CopyToDeviceStream_Destroy),
    PJRT_CopyToDeviceStream_AddChunk: Some(buffer::PJRT_CopyToDeviceStream_AddChunk),
    PJRT_CopyToDeviceStream_TotalBytes: Some(buffer::PJRT_CopyToDeviceStream_TotalBytes),
    PJRT_CopyToDeviceStream_GranuleSize: Some(buffer::PJRT_CopyToDeviceStream_GranuleSize),
    PJRT_CopyToDeviceStream_CurrentBytes: Some(buffer::PJRT_CopyToDeviceStream_CurrentBytes),
    PJRT_TopologyDescription_Create: Some(topology::PJRT_TopologyDescription_Create),
    PJRT_TopologyDescription_Destroy: Some(topology::PJRT_TopologyDescription_Destroy),
    PJRT_TopologyDescription_PlatformName: Some(topology::PJRT_TopologyDescription_PlatformName),
    PJRT_TopologyDescription_PlatformVersion: Some(topology::PJRT_TopologyDescription_PlatformVersion),
    PJRT_TopologyDescription_GetDeviceDescriptions: Some(topology::PJRT_TopologyDescription_GetDeviceDescriptions),
    PJRT_TopologyDescription_Serialize: Some(topology::PJRT_TopologyDescription_Serialize),
    PJRT_TopologyDescription_Attributes: Some(topology::PJRT_TopologyDescription_Attributes),
    PJRT_Compile: Some(executable::PJRT_Compile),
    PJRT_Executable_OutputElementTypes: Some(executable::PJRT_Executable_OutputElementTypes),
    PJRT_Executable_OutputDimensions: Some(executable::PJRT_Executable_OutputDimensions),
    PJRT_Buffer_CopyToMemory: Some(buffer::PJRT_Buffer_CopyToMemory),
    PJRT_Client_CreateViewOfDeviceBuffer: Some(client::PJRT_Client_CreateViewOfDeviceBuffer),
    PJRT_Executable_Fingerprint: Some(executable::PJRT_Executable_Fingerprint),
    PJRT_Client_TopologyDescription: Some(client::PJRT_Client_TopologyDescription),
    PJRT_Executable_GetCompiledMemoryStats: Some(executable::PJRT_Executable_GetCompiledMemoryStats),
    PJRT_Memory_Kind_Id: Some(device::PJRT_Memory_Kind_Id),
    PJRT_ExecuteContext_Create: Some(client::PJRT_ExecuteContext_Create),
    PJRT_ExecuteContext_Destroy: Some(client::PJRT_ExecuteContext_Destroy),
    PJRT_Buffer_CopyRawToHost: Some(buffer::PJRT_Buffer_CopyRawToHost),
    PJRT_AsyncHostToDeviceTransferManager_Destroy: Some(transfer::PJRT_AsyncHostToDeviceTransferManager_Destroy),
    PJRT_AsyncHostToDeviceTransferManager_TransferData: Some(
        transfer::PJRT_AsyncHostToDeviceTransferManager_TransferData,
    ),
    PJRT_Client_CreateBuffersForAsyncHostToDevice: Some(transfer::PJRT_Client_CreateBuffersForAsyncHostToDevice),
    PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer: Some(
        transfer::PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer,
    ),
    PJRT_AsyncHostToDeviceTransferManager_Device: Some(transfer::PJRT_AsyncHostToDeviceTransferManager_Device),
    PJRT_AsyncHostToDeviceTransferManager_BufferCount: Some(
        transfer::PJRT_AsyncHostToDeviceTransferManager_BufferCount,
    ),
    PJRT_AsyncHostToDeviceTransferManager_BufferSize: Some(transfer::PJRT_AsyncHostToDeviceTransferManager_BufferSize),
    PJRT_AsyncHostToDeviceTransferManager_SetBufferError: Some(
        transfer::PJRT_AsyncHostToDeviceTransferManager_SetBufferError,
    ),
    PJRT_AsyncHostToDeviceTransferManager_AddMetadata: Some(
        transfer::PJRT_AsyncHostToDeviceTransferManager_AddMetadata,
    ),
    PJRT_Client_DmaMap: Some(client::PJRT_Client_DmaMap),
    PJRT_Client_DmaUnmap: Some(client::PJRT_Client_DmaUnmap),
    PJRT_Client_CreateUninitializedBuffer: Some(client::PJRT_Client_CreateUninitializedBuffer),
    PJRT_Client_UpdateGlobalProcessInfo: Some(client::PJRT_Client_UpdateGlobalProcessInfo),
    PJRT_TopologyDescription_Deserialize: Some(topology::PJRT_TopologyDescription_Deserialize),
    PJRT_Client_CreateAliasBuffer: Some(client::PJRT_Client_CreateAliasBuffer),
    PJRT_Client_FulfillAliasBuffer: Some(client::PJRT_Client_FulfillAliasBuffer),
    PJRT_LoadedExecutable_GetDeviceAssignment: Some(executable::PJRT_LoadedExecutable_GetDeviceAssignment),
    PJRT_Client_CreateErrorBuffer: Some(client::PJRT_Client_CreateErrorBuffer),
    PJRT_AsyncHostToDeviceTransferManager_TransferLiteral: Some(
        transfer::PJRT_AsyncHostToDeviceTransferManager_TransferLiteral,
    ),
    PJRT_Buffer_CopyRawToHostFuture: Some(buffer::PJRT_Buffer_CopyRawToHostFuture),
    PJRT_Device_PoisonExecution: Some(device::PJRT_Device_PoisonExecution),
    PJRT_Device_CreateAsyncTrackingEvent: Some(device::PJRT_Device_CreateAsyncTrackingEvent),
    PJRT_AsyncTrackingEvent_Destroy: Some(device::PJRT_AsyncTrackingEvent_Destroy),
    PJRT_Executable_GetCompileOptions: Some(executable::PJRT_Executable_GetCompileOptions),
    PJRT_Buffer_DonateWithControlDependency: Some(buffer::PJRT_Buffer_DonateWithControlDependency),
    PJRT_Event_Create: Some(event::PJRT_Event_Create),
    PJRT_Event_Set: Some(event::PJRT_Event_Set),
    PJRT_Device_GetAttributes: Some(device::PJRT_Device_GetAttributes),
    PJRT_Client_Load: Some(client::PJRT_Client_Load),
    PJRT_LoadedExecutable_AddressableDeviceLogicalIds: Some(
        executable::PJRT_LoadedExecutable_AddressableDeviceLogicalIds,
    ),
    PJRT_Buffer_Bitcast: Some(buffer::PJRT_Buffer_Bitcast),
    PJRT_Error_ForEachPayload: Some(error::PJRT_Error_ForEachPayload),
    PJRT_TopologyDescription_Fingerprint: Some(topology::PJRT_TopologyDescription_Fingerprint),
    PJRT_Executable_ParameterMemoryKinds: Some(executable::PJRT_Executable_ParameterMemoryKinds),
    PJRT_Device_ClearMemoryStats: Some(device::PJRT_Device_ClearMemoryStats),
    PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace: Some(
        topology::PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace,
    ),
    PJRT_TopologyDescription_GetMemorySpaceKindIds: Some(topology::PJRT_TopologyDescription_GetMemorySpaceKindIds),
});

/// What a framework calls first: the table of entry points. It lives as long as the process.
#[unsafe(no_mangle)]
pub extern "C" fn GetPjrtApi() -> *const sys::PJRT_Api {
    &API.0
}
